//! Text for terminals and files: tables with aligned columns, short numbers, fields of CSV.

/// A column: its heading and where its cells stand. Numbers read best on the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column<'a> {
    /// Cells start together.
    Left(&'a str),
    /// Cells end together.
    Right(&'a str),
}

/// The table as lines without trailing spaces, the headings first, columns two spaces apart.
/// A short row has empty cells at its end; cells beyond the last column are left out.
pub fn render(columns: &[Column<'_>], rows: &[Vec<String>]) -> String {
    let heading = |column: &Column<'_>| match column {
        Column::Left(name) | Column::Right(name) => name.to_string(),
    };
    let headings: Vec<String> = columns.iter().map(heading).collect();
    let lines = || std::iter::once(&headings).chain(rows);
    let cell = |row: &[String], i: usize| row.get(i).cloned().unwrap_or_default();
    let widths: Vec<usize> = (0..columns.len())
        .map(|i| lines().map(|row| cell(row, i).chars().count()).max().unwrap_or(0))
        .collect();

    let mut text = String::new();
    for row in lines() {
        let cells: Vec<String> = columns
            .iter()
            .enumerate()
            .map(|(i, column)| match column {
                Column::Left(_) => format!("{:<1$}", cell(row, i), widths[i]),
                Column::Right(_) => format!("{:>1$}", cell(row, i), widths[i]),
            })
            .collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Four decimals, or an exponent where they would say nothing.
pub fn short(value: f64) -> String {
    let size = value.abs();
    if value.is_finite() && size != 0.0 && !(1e-3..1e6).contains(&size) {
        format!("{value:.3e}")
    } else {
        format!("{value:.4}")
    }
}

/// A CSV field; names with separators are quoted, line breaks in them become spaces.
pub fn csv_field(name: &str) -> String {
    let name = name.replace(['\n', '\r'], " ");
    if name.contains([',', '"']) { format!("\"{}\"", name.replace('"', "\"\"")) } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let columns = [Column::Left("tier"), Column::Right("peak"), Column::Left("why")];
        let rows = [
            vec!["device".into(), "7.6 GiB".into(), "größte".into()],
            vec!["host".into(), "12 B".into()],
            vec!["é".into(), "1".into(), "x".into(), "left out".into()],
        ];
        assert_eq!(
            render(&columns, &rows),
            "tier       peak  why\ndevice  7.6 GiB  größte\nhost       12 B\né             1  x\n"
        );
        assert_eq!(render(&columns, &[]), "tier  peak  why\n");
    }
}
