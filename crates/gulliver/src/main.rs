//! The `gulliver` command.

fn main() {}
