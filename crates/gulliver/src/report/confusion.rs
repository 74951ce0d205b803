//! A confusion matrix as text.

use super::table::{Column, render};

/// The most classes that are shown as a table.
const TABLE: usize = 12;
/// The most pairs of classes that are named when there are more.
const PAIRS: usize = 10;
/// The most characters of a class's name.
const NAME: usize = 16;

/// How many examples of each class (row) were taken for each class (column): as a table, or the pairs most often
/// confused if there are many classes. Classes without a name are called by their number.
pub fn confusion(matrix: &[Vec<u64>], names: &[String]) -> String {
    let name = |class: usize| match names.get(class) {
        Some(name) if name.chars().count() > NAME => {
            name.chars().take(NAME - 1).chain(['…']).map(plain).collect::<String>()
        }
        Some(name) => name.chars().map(plain).collect(),
        None => class.to_string(),
    };
    if matrix.len() <= TABLE {
        let names: Vec<String> = (0..matrix.len()).map(name).collect();
        let mut columns = vec![Column::Left("class \\ taken for")];
        columns.extend(names.iter().map(|name| Column::Right(name)));
        let row = |(class, row): (usize, &Vec<u64>)| {
            std::iter::once(names[class].clone()).chain(row.iter().map(u64::to_string)).collect()
        };
        let rows: Vec<Vec<String>> = matrix.iter().enumerate().map(row).collect();
        return render(&columns, &rows).trim_end().to_string();
    }
    let mut pairs: Vec<(u64, usize, usize)> = Vec::new();
    for (class, row) in matrix.iter().enumerate() {
        let wrong = row.iter().enumerate().filter(|(guess, n)| *guess != class && **n > 0);
        pairs.extend(wrong.map(|(guess, n)| (*n, class, guess)));
    }
    if pairs.is_empty() {
        return format!("none of {} classes was taken for another", matrix.len());
    }
    pairs.sort_by_key(|&(n, class, guess)| (std::cmp::Reverse(n), class, guess));
    let named = |&(n, class, guess): &(u64, usize, usize)| {
        vec![name(class), name(guess), n.to_string(), matrix[class].iter().sum::<u64>().to_string()]
    };
    let rows: Vec<Vec<String>> = pairs.iter().take(PAIRS).map(named).collect();
    let columns = [
        Column::Left("most confused: class"),
        Column::Left("taken for"),
        Column::Right("times"),
        Column::Right("of"),
    ];
    render(&columns, &rows).trim_end().to_string()
}

/// Names come from files; nothing in them may disturb a terminal.
fn plain(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_classes_are_a_table() {
        let names = ["cat".to_string(), "a name that is very\nlong".to_string()];
        assert_eq!(
            confusion(&[vec![12, 3, 0], vec![1, 20, 0], vec![0, 0, 7]], &names),
            "class \\ taken for  cat  a name that is …  2\n\
             cat                 12                 3  0\n\
             a name that is …     1                20  0\n\
             2                    0                 0  7"
        );
    }

    #[test]
    fn of_many_classes_the_most_confused_are_named() {
        let mut matrix = vec![vec![0; 13]; 13];
        (0..13).for_each(|class| matrix[class][class] = 5);
        assert_eq!(confusion(&matrix, &[]), "none of 13 classes was taken for another");
        matrix[3][7] = 2;
        matrix[12][0] = 4;
        assert_eq!(
            confusion(&matrix, &[]),
            "most confused: class  taken for  times  of\n\
             12                    0              4   9\n\
             3                     7              2   7"
        );
        matrix.iter_mut().for_each(|row| row.fill(1));
        assert_eq!(confusion(&matrix, &[]).lines().count(), 1 + PAIRS);
    }
}
