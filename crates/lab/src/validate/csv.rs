//! Files of comma-separated values with a header, as published measurements come.

/// A table of text.
#[derive(Clone, Debug, PartialEq)]
pub struct CsvTable {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Fields by row.
    pub rows: Vec<Vec<String>>,
}

impl CsvTable {
    /// Reads a table; rows that are too short are filled up.
    pub fn parse(text: &str) -> CsvTable {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty()).map(fields);
        let columns: Vec<String> = lines.next().unwrap_or_default();
        let rows = lines.map(|mut row| {
            row.resize(columns.len(), String::new());
            row
        });
        CsvTable { rows: rows.collect(), columns }
    }

    /// Whether there are all of these columns.
    pub fn has(&self, columns: &[&str]) -> bool {
        columns.iter().all(|name| self.columns.iter().any(|column| column == name))
    }

    /// A row by the names of its columns.
    pub fn rows(&self) -> impl Iterator<Item = CsvRow<'_>> {
        self.rows.iter().map(|fields| CsvRow { table: self, fields })
    }
}

/// A row of a table.
#[derive(Clone, Copy, Debug)]
pub struct CsvRow<'a> {
    table: &'a CsvTable,
    fields: &'a [String],
}

impl CsvRow<'_> {
    /// A field, empty if there is no such column.
    pub fn text(&self, column: &str) -> &str {
        let at = self.table.columns.iter().position(|name| name == column);
        at.and_then(|at| self.fields.get(at)).map_or("", |field| field.trim())
    }

    /// A field that is a finite number.
    pub fn number(&self, column: &str) -> Option<f64> {
        self.text(column).parse().ok().filter(|x: &f64| x.is_finite())
    }

    /// A field that is a count, 1 if it is empty.
    pub fn count(&self, column: &str) -> Option<u32> {
        if self.text(column).is_empty() {
            return Some(1);
        }
        self.number(column).filter(|x| (1.0..4e9).contains(x)).map(|x| x as u32)
    }

    /// The row as text, for people.
    pub fn line(&self, columns: &[&str]) -> String {
        let shown = columns.iter().map(|column| self.text(column)).filter(|text| !text.is_empty());
        shown.collect::<Vec<_>>().join(" ")
    }
}

/// Fields of a line; quotes keep commas, and two of them are one.
fn fields(line: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                all.last_mut().iter_mut().for_each(|field| field.push('"'));
            }
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(String::new()),
            c => all.last_mut().iter_mut().for_each(|field| field.push(c)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_as_they_come() {
        let table = CsvTable::parse("a,b,c\n1,\"x, \"\"y\"\"\",3\n\n4\n");
        assert_eq!(table.rows.len(), 2);
        let rows: Vec<CsvRow> = table.rows().collect();
        assert_eq!(
            (rows[0].number("a"), rows[0].text("b"), rows[0].count("c")),
            (Some(1.0), "x, \"y\"", Some(3))
        );
        assert_eq!((rows[1].number("b"), rows[1].count("c"), rows[1].text("d")), (None, Some(1), ""));
        assert!(table.has(&["a", "c"]) && !table.has(&["a", "d"]));
    }
}
