//! What all plans of a graph have in common, whatever the sizes of the input: the order of the tasks, what shares
//! storage and for how long, and the kinds of nodes and types. A plan for new sizes only fills in bytes and offsets.

use crate::document::collectives::with_collective;
use crate::document::error::PlanError;
use crate::document::links::Links;
use crate::step::base::{Base, VersionFacts};
use crate::step::lifetime::{Lifetimes, StorageSharing, lifetimes, profile};
use crate::step::options::PlanOptions;
use crate::step::order::{OrderRule, in_turns, tasks};
use crate::step::progress::Activity;
use crate::step::readers::Readers;
use crate::step::script::Script;
use crate::time::cost::{CollectivePrice, Curves};
use gulliver_graph::dim::{BATCH, Bindings, DimError};
use gulliver_graph::graph::op::exchange::Exchange;
use gulliver_graph::graph::{Graph, Value};
use gulliver_graph::kinds::Kinds;
use gulliver_graph::work::Work;

/// Order, storage and kinds of one graph.
#[derive(Clone)]
pub struct Outline {
    /// Slices of the batch.
    pub partials: u32,
    /// How backward and update nodes are ordered.
    pub rule: OrderRule,
    /// What happens if everything stays on the device.
    pub script: Script,
    /// What then shares storage.
    pub life: Lifetimes,
    /// Who reads what.
    pub readers: Readers,
    /// What may share storage.
    pub sharing: StorageSharing,
    /// What repeats.
    pub kinds: Kinds,
    /// What may be done with the versions of the script.
    facts: VersionFacts,
    /// What every kind of node has to do.
    work: Vec<Work>,
}

/// The sizes of one input, put into every kind of an outline.
#[derive(Clone)]
pub struct BoundSizes {
    /// BoundSizes of one partial.
    pub slice: Bindings,
    /// Bytes of one instance, by kind of type.
    pub bytes: Vec<u64>,
    /// Working memory by kind of node.
    pub scratch: Vec<u64>,
    /// Seconds by kind of node.
    pub seconds: Vec<f64>,
    /// The same while other devices are at rest, if that makes a difference; else nothing.
    pub alone: Vec<f64>,
    /// What a collective takes of the device's time, if that is known.
    pub collective: Option<CollectivePrice>,
}

impl Outline {
    /// The outline with the order of these rules that needs least memory for inputs of these sizes (of the whole batch);
    /// it serves inputs of any size.
    pub fn new(
        graph: &Graph,
        sizes: &Bindings,
        options: &PlanOptions,
        rules: &[OrderRule],
    ) -> Result<Outline, PlanError> {
        let (kinds, readers) = (Kinds::of(graph), Readers::of(graph));
        let partials = options.partials.max(1);
        let sizes = bind_sizes(graph, &kinds, sizes, options)?;
        let bytes: Vec<u64> = kinds.type_of.iter().map(|&k| sizes.bytes[k as usize]).collect();
        let sharing = StorageSharing::of(graph, &readers, partials);
        let turns = |turns| in_turns(graph, &readers, partials, turns).ok_or(PlanError::Turns);
        let in_turns = options.turns.map(turns).transpose()?;
        let rules = if in_turns.is_some() { &rules[..1] } else { rules };
        let mut best: Option<(u64, OrderRule, Script, Lifetimes)> = None;
        for (i, &rule) in rules.iter().enumerate() {
            options.told(Activity::Order, i, rules.len())?;
            let tasks = in_turns.clone().unwrap_or_else(|| tasks(graph, &readers, partials, rule, &bytes));
            let script = Script::of(graph, &readers, &tasks, partials);
            let life = lifetimes(&sharing, &script);
            let scratch = |node: usize| sizes.scratch[kinds.kind_of[node] as usize];
            let peak = profile(&script, &life, &bytes, scratch).into_iter().max().unwrap_or(0);
            if best.as_ref().is_none_or(|(least, ..)| peak < *least) {
                best = Some((peak, rule, script, life));
            }
        }
        let (_, rule, script, life) = best.expect("at least one rule is given");
        let work = kinds.nodes.iter().map(|id| Work::of(graph, &graph.nodes[id.index()])).collect();
        let facts = VersionFacts::of(graph, &script);
        Ok(Outline { partials, rule, script, life, readers, sharing, kinds, facts, work })
    }

    /// The script in which everything stays, with what may be done to it.
    pub fn base<'a>(&'a self, graph: &'a Graph) -> Base<'a> {
        self.facts.base(graph, &self.script)
    }

    /// Puts the sizes of an input (of the whole batch) into every kind.
    pub fn sizes(
        &self,
        graph: &Graph,
        sizes: &Bindings,
        options: &PlanOptions,
    ) -> Result<BoundSizes, PlanError> {
        Ok(self.priced(&bind_sizes(graph, &self.kinds, sizes, options)?, options))
    }

    /// The same sizes at other prices.
    pub(crate) fn priced(&self, sizes: &BoundSizes, options: &PlanOptions) -> BoundSizes {
        let by = |curves: Option<&Curves>| -> Vec<f64> {
            let kinds = self.work.iter().enumerate().map(|(kind, work)| {
                let slower = options.slower.get(kind).copied().unwrap_or(1.0);
                let load = work.bind(&sizes.slice).unwrap_or_default();
                let measured = curves.and_then(|curves| curves.seconds(&work.family, &load));
                slower * measured.unwrap_or_else(|| options.rates.seconds(load.flops, load.bytes))
            });
            kinds.collect()
        };
        let alone = options.curves.and_then(|curves| curves.alone.as_deref());
        let alone = alone.map_or_else(Vec::new, |alone| by(Some(alone)));
        let collective = options.curves.and_then(|curves| curves.collective);
        BoundSizes { seconds: by(options.curves), alone, collective, ..sizes.clone() }
    }

    /// Seconds of a node.
    pub fn seconds(&self, sizes: &BoundSizes, node: usize) -> f64 {
        sizes.seconds[self.kinds.kind_of[node] as usize]
    }

    /// Seconds of a node; a collective takes as long as its bytes over the links.
    pub fn seconds_over(&self, graph: &Graph, sizes: &BoundSizes, links: &Links, node: usize) -> f64 {
        match with_collective(&graph.nodes[node], &sizes.slice, Exchange::bytes) {
            Some(bytes) => {
                let bytes = bytes as f64;
                let least = sizes.collective.map_or(0.0, |collective| collective.seconds(bytes));
                (bytes / links.from_peers).max(least)
            }
            None => self.seconds(sizes, node),
        }
    }

    /// Seconds of a node while other devices are idle, if that is known.
    pub fn seconds_alone(&self, sizes: &BoundSizes, node: usize) -> Option<f64> {
        sizes.alone.get(self.kinds.kind_of[node] as usize).copied()
    }

    /// Of a collective held beside kernels that have all cores: seconds that these lose to it, whatever the links, and seconds it
    /// takes. None for other nodes.
    pub fn seconds_met(&self, graph: &Graph, sizes: &BoundSizes, node: usize) -> [f64; 2] {
        let bytes = with_collective(&graph.nodes[node], &sizes.slice, |what| what.bytes() as f64);
        let of = |(bytes, collective): (f64, CollectivePrice)| {
            [collective.lost(bytes), collective.seconds(bytes) + collective.beside]
        };
        bytes.zip(sizes.collective).map_or([0.0; 2], of)
    }
}

/// The sizes of one of several equal slices of a batch.
pub fn slice_of(sizes: &Bindings, partials: u32) -> Result<Bindings, PlanError> {
    let mut slice = sizes.clone();
    if let Some(batch) = sizes.get(BATCH) {
        if batch == 0 || batch % partials as usize != 0 {
            return Err(PlanError::Partials { batch, partials });
        }
        slice.set(BATCH, batch / partials as usize);
    }
    Ok(slice)
}

/// Puts sizes into every type and asks every kind of node for its working memory.
fn bind_sizes(
    graph: &Graph,
    kinds: &Kinds,
    sizes: &Bindings,
    options: &PlanOptions,
) -> Result<BoundSizes, PlanError> {
    let partials = options.partials.max(1);
    let slice = slice_of(sizes, partials)?;
    let mut bytes = Vec::with_capacity(kinds.types.len());
    let mut shapes = Vec::with_capacity(kinds.types.len());
    for ty in &kinds.types {
        let shape = ty.bind(&slice)?;
        let elements = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64));
        // All partials of a value lie in one buffer.
        let total = elements.and_then(|n| n.checked_mul(ty.dtype.size() as u64));
        let fits = total.filter(|n| n.checked_mul(u64::from(partials)).is_some_and(|n| n <= i64::MAX as u64));
        let overflow = || DimError::OutOfRange { dim: ty.to_string(), value: "too large".into() };
        bytes.push(fits.ok_or_else(overflow)?);
        shapes.push(shape);
    }
    let mut scratch = Vec::with_capacity(kinds.nodes.len());
    let shape = |v: &Value| shapes[kinds.type_of[v.index()] as usize].as_slice();
    for id in &kinds.nodes {
        let node = &graph.nodes[id.index()];
        let (ins, outs): (Vec<_>, Vec<_>) =
            (node.ins.iter().map(shape).collect(), node.outs.iter().map(shape).collect());
        let fits = node.op.def().fits(&ins, &outs);
        fits.map_err(|why| PlanError::Shape { node: graph.value(node.outs[0]).name.clone(), why })?;
        let view = node.op.def().is_view();
        scratch.push(if view { 0 } else { (options.scratch)(graph, node, &slice)? });
    }
    Ok(BoundSizes { slice, bytes, scratch, seconds: Vec::new(), alone: Vec::new(), collective: None })
}
