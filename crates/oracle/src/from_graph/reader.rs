//! Figures of a training graph's nodes and values: elements, extents and kernels.

use super::{KernelStyle, framework, is_product};
use crate::OracleError;
use crate::kernel::{Divide, Grows, KernelFamily, KernelWork};
use crate::workload::ModelLayer;
use gulliver_graph::dim::{Bindings, Dim};
use gulliver_graph::graph::op::conv::ConvRotation;
use gulliver_graph::graph::op::{Op, OpError};
use gulliver_graph::graph::{Graph, Node, Value};
use gulliver_graph::spec::AxisId;

/// A graph whose figures are read for one sample.
pub struct Reader<'a> {
    pub graph: &'a Graph,
    one: Bindings,
    two: Bindings,
    pub kernels: KernelStyle,
    /// Whether the model drops anything.
    pub drops: bool,
}

/// A number that depends on the batch.
#[derive(Clone, Copy, Default)]
pub struct Amount {
    /// For each sample.
    pub each: f64,
    /// Whatever the batch.
    pub fixed: f64,
}

impl<'a> Reader<'a> {
    /// Reads a graph whose sizes but `batch` are these.
    pub fn new(graph: &'a Graph, sizes: &Bindings, kernels: KernelStyle) -> Reader<'a> {
        let drops = graph.nodes.iter().any(|node| matches!(node.op, Op::Dropout(_)));
        let [one, two] = [1, 2].map(|samples| sizes.clone().with("batch", samples));
        Reader { graph, one, two, kernels, drops }
    }

    fn amount(&self, dim: &Dim) -> Result<Amount, OracleError> {
        let bind = |sizes| dim.bind(sizes).map_err(|e| OracleError::Graph(e.to_string()));
        let (one, two) = (bind(&self.one)? as f64, bind(&self.two)? as f64);
        Ok(Amount { each: two - one, fixed: 2.0 * one - two })
    }

    /// Elements of four bytes of a value.
    pub fn elements(&self, v: Value) -> Result<Amount, OracleError> {
        let Amount { each, fixed } = self.amount(&self.graph.ty(v).bytes())?;
        Ok(Amount { each: each / 4.0, fixed: fixed.max(0.0) / 4.0 })
    }

    /// The shape of a value for one sample.
    pub fn shape(&self, v: Value) -> Result<Vec<f64>, OracleError> {
        let shape = self.graph.ty(v).bind(&self.one).map_err(|e| OracleError::Graph(e.to_string()))?;
        Ok(shape.into_iter().map(|extent| extent as f64).collect())
    }

    pub fn extents(&self, v: Value) -> Result<Vec<f64>, OracleError> {
        let shape = self.shape(v)?;
        Ok(if shape.len() > 2 { shape[2..].to_vec() } else { Vec::new() })
    }

    /// The kernels of a node; a view has none.
    pub fn works(&self, node: &Node) -> Result<Vec<KernelWork>, OracleError> {
        if node.op.def().is_view() {
            return Ok(Vec::new());
        }
        let work = self.work(node)?;
        match self.kernels {
            KernelStyle::Nodes => Ok(vec![work]),
            KernelStyle::Framework | KernelStyle::FusedAttention => framework::works(self, node, work),
        }
    }

    fn work(&self, node: &Node) -> Result<KernelWork, OracleError> {
        let wrong = |e: OpError| OracleError::Graph(e.to_string());
        // Points of operators that only move may be beyond counting.
        let points = match node.op.def().flops_per_point() {
            0 => Amount::default(),
            _ => self.amount(&self.graph.flops(node).map_err(wrong)?)?,
        };
        let flops = points.each;
        let (mut moved, mut weights) = (0.0, 0.0);
        for v in node.ins.iter().chain(&node.outs) {
            let elements = self.elements(*v)?;
            moved += elements.each;
            weights += elements.fixed;
        }
        let family = match &node.op {
            Op::Contract(_) => KernelFamily::Matrix,
            Op::Conv(_) => KernelFamily::Convolution,
            op if is_product(op) => KernelFamily::Batched,
            Op::AttentionGrad(_) | Op::LstmGrad(_) | Op::GruGrad(_) => KernelFamily::Batched,
            _ => KernelFamily::Memory,
        };
        let mut work = KernelWork { family, flops, weights, ..KernelWork::memory(moved, 1.0, Divide::Batch) };
        if matches!(family, KernelFamily::Matrix | KernelFamily::Convolution) {
            self.extents_of_product(node, &mut work)?;
            // A product without the batch in it is done once for all samples.
            if flops == 0.0 {
                work.flops = points.fixed;
            }
        } else if family == KernelFamily::Batched {
            // Blocks of a usual size: such kernels walk through them.
            (work.rows, work.columns, work.depth) = (128.0, 128.0, 64.0);
            work.products = (flops / (2.0 * 128.0 * 128.0 * 64.0)).max(1.0);
        }
        Ok(work)
    }

    /// Rows, columns, depth and products of a product of two operands, by where its axes are.
    fn extents_of_product(&self, node: &Node, work: &mut KernelWork) -> Result<(), OracleError> {
        let wrong = |e: OpError| OracleError::Graph(e.to_string());
        let spec = self.graph.spec(node).map_err(wrong)?;
        let ins: Vec<&[Dim]> = node.ins.iter().map(|v| self.graph.ty(*v).shape.as_slice()).collect();
        let extents = spec.extents(&ins).map_err(|e| OracleError::Graph(e.to_string()))?;
        let (mut products, mut rows, mut columns, mut depth) = (1.0, 1.0, 1.0, 1.0);
        work.grows = Grows::Products;
        for (i, extent) in extents.iter().enumerate() {
            let axis = AxisId(i);
            let has =
                |operand: usize| spec.inputs.get(operand).is_some_and(|all| all.iter().any(|x| x.has(axis)));
            let (size, grows) = match (spec.in_outputs(axis), has(0), has(1)) {
                (false, _, _) => (&mut depth, Grows::Depth),
                (true, true, true) => (&mut products, Grows::Products),
                (true, true, false) => (&mut rows, Grows::Rows),
                (true, false, _) => (&mut columns, Grows::Rows),
            };
            let extent = self.amount(extent)?;
            *size *= extent.each + extent.fixed;
            if extent.each > 0.0 {
                work.grows = grows;
            }
        }
        (work.products, work.rows, work.columns, work.depth) = (products, rows, columns, depth);
        Ok(())
    }

    /// Adds figures of a layer that cuts need: halo, channels, extents, statistics, heads.
    pub fn describe(&self, node: &Node, layer: &mut ModelLayer) -> Result<(), OracleError> {
        match &node.op {
            Op::Conv(conv) if conv.rotation == ConvRotation::Forward => {
                let taps = self.shape(node.ins[1])?;
                let dilation = conv.window.first().map_or(1, |w| w.dilation);
                layer.halo = (taps.get(2).copied().unwrap_or(1.0).max(1.0) - 1.0) * dilation as f64 / 2.0;
                layer.filters = taps[0];
                layer.channels = taps[1] * conv.groups as f64;
                layer.input_extents = self.extents(node.ins[0])?;
                layer.extents = self.extents(node.outs[0])?;
            }
            Op::MaxPool(pool) => {
                let reach = pool.window.first().map_or(0, |w| w.kernel.saturating_sub(w.stride));
                layer.halo += reach as f64 / 2.0;
            }
            Op::BatchNorm(_) => layer.statistics += 2.0 * layer.filters,
            Op::Attention(_) => layer.heads = self.shape(node.ins[0])?.get(2).copied().unwrap_or(0.0),
            _ => {}
        }
        Ok(())
    }
}
