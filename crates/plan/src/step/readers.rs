//! Which nodes read a value, and whether it exists once per partial: facts about a graph that every order, script and
//! lifetime starts from. Found once, in time linear in the graph.

use gulliver_graph::graph::{Graph, NodeId, Phase, Value};

/// One occurrence of a value in a step: computed values exist once per partial, all else once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instance {
    /// The value.
    pub value: Value,
    /// The slice of the batch; 0 for what exists once.
    pub partial: u32,
}

/// Who reads what, by the value whose bytes are read: a view's are its operand's.
#[derive(Clone)]
pub struct Readers {
    /// The value whose bytes a value shows.
    pub root: Vec<Value>,
    /// Whether a root exists once per partial.
    pub repeats: Vec<bool>,
    /// Whether the sum of a root over the partials is wanted: by the update, or as output.
    pub summed: Vec<bool>,
    /// Whether a root is an output.
    pub output: Vec<bool>,
    first: Vec<u32>,
    nodes: Vec<NodeId>,
}

impl Readers {
    /// In time linear in the graph.
    pub fn of(graph: &Graph) -> Readers {
        let count = graph.values.len();
        let mut root: Vec<Value> = (0..count as u32).map(Value).collect();
        for node in graph.nodes.iter().filter(|n| n.op.def().is_view()) {
            root[node.outs[0].index()] = root[node.ins[0].index()];
        }
        let mut summed = vec![false; count];
        for node in graph.nodes.iter().filter(|n| n.phase == Phase::Update) {
            for (i, v) in node.ins.iter().enumerate() {
                summed[root[v.index()].index()] |= graph.repeats(*v) && !node.op.def().each_partial(i);
            }
        }
        let mut output = vec![false; count];
        for v in graph.outputs.iter().map(|output| output.value) {
            let v = root[v.index()];
            output[v.index()] = true;
            summed[v.index()] |= graph.repeats(v);
        }
        // Lists of readers, one after the other: counted, then filled.
        let reads = |visit: &mut dyn FnMut(usize, NodeId)| {
            for (id, node) in graph.nodes.iter().enumerate().filter(|(_, n)| !n.op.def().is_view()) {
                for_each_root(&root, &node.ins, |v| visit(v.index(), NodeId(id as u32)));
            }
        };
        let mut first = vec![0u32; count + 1];
        reads(&mut |v, _| first[v + 1] += 1);
        for v in 0..count {
            first[v + 1] += first[v];
        }
        let mut nodes = vec![NodeId(0); first[count] as usize];
        let mut next = first.clone();
        reads(&mut |v, id| {
            nodes[next[v] as usize] = id;
            next[v] += 1;
        });
        let repeats = (0..count as u32).map(|v| graph.repeats(Value(v))).collect();
        Readers { root, repeats, summed, output, first, nodes }
    }

    /// The nodes that read a root, each once, in the graph's order.
    pub fn of_root(&self, root: Value) -> &[NodeId] {
        &self.nodes[self.first[root.index()] as usize..self.first[root.index() + 1] as usize]
    }

    /// The instance of a value that a node sees when it runs for a partial.
    pub fn seen(&self, v: Value, partial: u32) -> Instance {
        let value = self.root[v.index()];
        Instance { value, partial: if self.repeats[value.index()] { partial } else { 0 } }
    }
}

/// Calls `f` once for each value whose bytes the operands show.
pub(crate) fn for_each_root(root: &[Value], ins: &[Value], mut f: impl FnMut(Value)) {
    for (i, v) in ins.iter().enumerate() {
        let v = root[v.index()];
        if ins[..i].iter().all(|w| root[w.index()] != v) {
            f(v);
        }
    }
}
