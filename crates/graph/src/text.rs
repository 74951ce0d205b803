//! Graphs as text, one line per input, node, output and carry; printing and reading are inverse.
//!
//! ```text
//! input %0 x data example f32[batch,784]
//! input %1 fc.weight weight {"uniform":0.0357} f32[10,784]
//! %2 = fc.contract forward 0 {"contract":{"a":"b d","b":"o d","out":"b o"}} %0 %1 : f32[batch,10]
//! output logits logits device %2
//! carry %1 %7
//! ```

use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::op::Op;
use crate::graph::{
    Graph, GraphError, GraphOutput, Node, NodeId, Origin, Phase, Role, Type, Value, ValueInfo,
};
use crate::verify::verify;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::str::FromStr;

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (v, role, info) in self.inputs() {
            writeln!(f, "input %{} {} {} {}", v.0, info.name, role_text(role), info.ty)?;
        }
        for node in &self.nodes {
            let outs: Vec<String> = node.outs.iter().map(|v| format!("%{}", v.0)).collect();
            let name = node.outs.first().map_or("", |v| &self.value(*v).name);
            let op = serde_json::to_string(&node.op).map_err(|_| fmt::Error)?;
            write!(f, "{} = {name} {} {} {op}", outs.join(" "), phase_text(node.phase), node.objective)?;
            for v in &node.ins {
                write!(f, " %{}", v.0)?;
            }
            let types: Vec<String> = node.outs.iter().map(|v| self.ty(*v).to_string()).collect();
            writeln!(f, " : {}", types.join(" "))?;
        }
        for GraphOutput { name, role, scope, value } in &self.outputs {
            writeln!(f, "output {name} {} {} %{}", word(role), word(scope), value.0)?;
        }
        for (input, next) in &self.carries {
            writeln!(f, "carry %{} %{}", input.0, next.0)?;
        }
        Ok(())
    }
}

/// JSON without the quotes around a single word.
fn word<T: Serialize>(x: &T) -> String {
    let json = serde_json::to_string(x).unwrap_or_default();
    json.trim_matches('"').to_string()
}

/// The inverse of [`word`].
fn read_word<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let quoted = if text.starts_with('{') { text.to_string() } else { format!("\"{text}\"") };
    serde_json::from_str(&quoted).map_err(|e| e.to_string())
}

fn role_text(role: Role) -> String {
    match role {
        Role::Data(role) => format!("data {}", word(&role)),
        Role::Weight(init) => format!("weight {}", word(&init)),
        Role::State(init) => format!("state {}", word(&init)),
        Role::Hyper(role, default) => format!("hyper {} {default}", word(&role)),
        Role::Random => "random".into(),
    }
}

fn phase_text(phase: Phase) -> &'static str {
    match phase {
        Phase::Forward => "forward",
        Phase::Backward => "backward",
        Phase::Update => "update",
    }
}

impl FromStr for Graph {
    type Err = GraphError;

    fn from_str(text: &str) -> Result<Graph, GraphError> {
        let mut reader = Reader::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            reader.line(line).map_err(|why| GraphError::Text { line: number + 1, why })?;
        }
        let graph = reader.finish()?;
        verify(&graph)?;
        Ok(graph)
    }
}

#[derive(Default)]
struct Reader {
    values: Vec<Option<ValueInfo>>,
    graph: Graph,
}

/// No graph has more values than this; a larger number in a text is a mistake, not a request for memory.
const MOST_VALUES: u32 = 1 << 24;

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), String> {
        let (first, rest) = line.split_once(' ').ok_or("a line has at least two words")?;
        match first {
            "input" => self.input(rest),
            "output" => {
                let [name, role, scope, v] = rest.split(' ').collect::<Vec<_>>()[..] else {
                    return Err("output needs a name, role, scope and value".into());
                };
                let (role, scope) = (read_word(role)?, read_word(scope)?);
                self.graph.outputs.push(GraphOutput { name: name.into(), role, scope, value: value(v)? });
                Ok(())
            }
            "carry" => {
                let (input, next) = rest.split_once(' ').ok_or("carry needs two values")?;
                self.graph.carries.push((value(input)?, value(next)?));
                Ok(())
            }
            _ => self.node(line),
        }
    }

    fn input(&mut self, rest: &str) -> Result<(), String> {
        let words: Vec<&str> = rest.split(' ').collect();
        let [v, name, role @ .., ty] = words.as_slice() else {
            return Err("input needs a value, name, role and type".into());
        };
        let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is not a number"));
        let role = match role {
            ["data", text] => Role::Data(read_word(text)?),
            ["random"] => Role::Random,
            ["weight", text] => Role::Weight(read_word(text)?),
            ["state", text] => Role::State(read_word(text)?),
            ["hyper", text, default] => Role::Hyper(read_word(text)?, number(default)?),
            _ => return Err(format!("`{}` is not a role", role.join(" "))),
        };
        let info = ValueInfo { name: name.to_string(), ty: read_type(ty)?, origin: Origin::Input(role) };
        self.define(value(v)?, info)
    }

    fn node(&mut self, line: &str) -> Result<(), String> {
        let (outs, rest) = line.split_once(" = ").ok_or("expected input, output, carry or a node")?;
        let outs = outs.split(' ').map(value).collect::<Result<Vec<_>, _>>()?;
        let mut words = rest.splitn(4, ' ');
        let mut word =
            || words.next().ok_or_else(|| "a node needs a name, phase, objective and operator".to_string());
        let name = word()?.to_string();
        let phase = match word()? {
            "forward" => Phase::Forward,
            "backward" => Phase::Backward,
            "update" => Phase::Update,
            other => return Err(format!("`{other}` is not a phase")),
        };
        let objective = word()?.parse().map_err(|_| "the objective is not a number")?;
        let rest = word()?;
        let mut ops = serde_json::Deserializer::from_str(rest).into_iter::<Op>();
        let op = ops.next().ok_or("no operator")?.map_err(|e| e.to_string())?;
        let (ins, types) = rest[ops.byte_offset()..].split_once(':').ok_or("a node needs `: types`")?;
        let ins = ins.split_whitespace().map(value).collect::<Result<Vec<_>, _>>()?;
        let types = types.split_whitespace().map(read_type).collect::<Result<Vec<_>, _>>()?;
        if types.len() != outs.len() {
            return Err(format!("{} values but {} types", outs.len(), types.len()));
        }
        let node = NodeId(self.graph.nodes.len() as u32);
        for (output, (v, ty)) in outs.iter().zip(types).enumerate() {
            let name = if output == 0 { name.clone() } else { format!("{name}.{output}") };
            self.define(*v, ValueInfo { name, ty, origin: Origin::Node { node, output } })?;
        }
        self.graph.nodes.push(Node { op, ins, outs, phase, objective });
        Ok(())
    }

    fn define(&mut self, v: Value, info: ValueInfo) -> Result<(), String> {
        if self.values.len() <= v.index() {
            self.values.resize(v.index() + 1, None);
        }
        match self.values[v.index()].replace(info) {
            Some(_) => Err(format!("%{} is defined twice", v.0)),
            None => Ok(()),
        }
    }

    fn finish(mut self) -> Result<Graph, GraphError> {
        for (i, info) in self.values.into_iter().enumerate() {
            let info = info.ok_or_else(|| GraphError::Invalid(format!("%{i} is not defined")))?;
            self.graph.values.push(info);
        }
        Ok(self.graph)
    }
}

fn value(word: &str) -> Result<Value, String> {
    let number = word.strip_prefix('%').and_then(|n| n.parse().ok()).filter(|&n| n < MOST_VALUES);
    number.map(Value).ok_or_else(|| format!("`{word}` is not a value"))
}

fn read_type(word: &str) -> Result<Type, String> {
    let bad = || format!("`{word}` is not a type");
    let (dtype, dims) = word.strip_suffix(']').and_then(|w| w.split_once('[')).ok_or_else(bad)?;
    let dtype = DType::parse(dtype).ok_or_else(bad)?;
    let dims = dims.split(',').filter(|d| !d.is_empty()).map(Dim::parse).collect::<Result<_, _>>();
    Ok(Type { dtype, shape: dims.map_err(|e| e.to_string())? })
}
