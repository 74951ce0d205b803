//! `gulliver models`: the models, their sizes and parameters; all from the table.

use crate::error::Error;
use crate::report::table::{self, Column};
use crate::units;
use clap::Args;
use gulliver_graph::dim::{Bindings, Dim};
use gulliver_graph::model::{MODELS, ModelRow, model};
use gulliver_graph::nearest::suggestion;
use gulliver_graph::training::evaluation_graph;
use serde_json::json;
use std::io::Write;

/// List the models, or the settings of one.
#[derive(Args)]
pub struct ModelsArguments {
    /// A model whose settings to list.
    name: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn parameters(row: &ModelRow) -> Result<u64, Error> {
    let graph = evaluation_graph(model(row.name, &[])?.as_ref())?;
    let count: Dim = graph.parameters();
    Ok(count.bind(&Bindings::new()).unwrap_or(0) as u64)
}

/// Runs the command.
pub fn run(arguments: &ModelsArguments) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    if let Some(name) = &arguments.name {
        let Some(row) = MODELS.iter().find(|row| row.name == name) else {
            let hint = suggestion(name, MODELS.iter().map(|row| row.name), "there are");
            return Err(Error::Invalid(format!("there is no model `{name}`{hint}")));
        };
        return show(&mut out, row, arguments.json);
    }
    let mut cells = Vec::new();
    let mut list = Vec::new();
    for row in MODELS {
        let count = parameters(row)?;
        cells.push(vec![row.name.to_string(), units::count(count), row.help.to_string()]);
        list.push(json!({"name": row.name, "help": row.help, "parameters": count}));
    }
    if arguments.json {
        writeln!(out, "{}", serde_json::Value::Array(list))?;
        return Ok(());
    }
    let columns = [Column::Left("model"), Column::Right("parameters"), Column::Left("what it is")];
    write!(out, "{}", table::render(&columns, &cells))?;
    Ok(())
}

fn show(out: &mut impl Write, row: &ModelRow, json: bool) -> Result<(), Error> {
    let params = row.params();
    if json {
        let list = params.iter().map(|p| json!({"name": p.name, "default": p.default, "help": p.help}));
        let list: Vec<_> = list.collect();
        let all =
            json!({"name": row.name, "help": row.help, "parameters": parameters(row)?, "settings": list});
        writeln!(out, "{all}")?;
        return Ok(());
    }
    writeln!(out, "{}: {} ({} parameters)", row.name, row.help, units::count(parameters(row)?))?;
    let columns = [Column::Left("setting"), Column::Left("default"), Column::Left("what it is")];
    let cells: Vec<Vec<String>> =
        params.iter().map(|p| vec![p.name.to_string(), p.default.to_string(), p.help.to_string()]).collect();
    write!(out, "{}", table::render(&columns, &cells))?;
    Ok(())
}
