//! An operator of one's own, with spec, gradient, reference kernel and fast kernel, in a model; checked by
//! the test bench of the built-in operators:  cargo run --release --example own_operator
use gulliver::graph::{graph::op::check, op_check};
use gulliver::prelude::*;

/// `y = x / (1 + k·|x|)`.
#[derive(Debug)]
struct Softsign(f32);

impl OpName for Softsign {
    fn name(&self) -> &'static str {
        "softsign"
    }
    fn help(&self) -> &'static str {
        "x / (1 + k|x|)"
    }
}

impl OpDef for Softsign {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 1, &[])?;
        Ok(expand_ellipsis("... -> ...", ins[0].rank()).parse()?)
    }
    /// `dx = dy·(1 - k·|y|)²`, of built-in operators.
    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let size = g.abs(at.outs[0])?;
        let root = g.map(Function::Affine { scale: -self.0, shift: 1.0 }, size)?;
        let slope = g.square(root)?;
        Ok(vec![Some(g.mul(at.dout()?, slope)?)])
    }
    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        outs[0].data = ins[0].data.iter().map(|x| x / (1.0 + f64::from(self.0) * x.abs())).collect();
    }
    fn samples() -> Vec<Sample> {
        vec![Sample::normal(Custom::new(Softsign(2.0)), &[&[3, 5]])]
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let net = Classifier(|g: &mut Builder| {
        let x = g.data("x", DType::F32, &[Dim::symbol("batch"), 2.into()])?;
        let x = g.scope("hidden", |g| g.linear(x, 32, true))?;
        let x = g.push1(Custom::new(Softsign(0.5)), &[x])?;
        g.scope("out", |g| g.linear(x, 3, true))
    });
    println!("{} comparisons are fine", op_check::all(&Softsign::samples()[0])?);
    let fast = Kernels::default()
        .with(|&Softsign(k), _ins, _outs, _threads| Some(Lowered::map(move |x| x / (1.0 + k * x.abs()))));
    let blobs = DataOptions { kind: "blobs".into(), classes: Some(3), ..DataOptions::default() };
    let batch = data::open(&blobs)?.0.batch(&Vec::from_iter(0..256))?;
    for kernels in [Kernels::default(), fast] {
        let graph = training_graph(&net, &[Optimizer::new("sgd", &[("lr", 0.1)])?], None)?;
        let mut session = session(graph, None, &LocalDevice { kernels, ..Default::default() }, 0)?;
        let steps = (0..100).map(|step| session.step(&batch, StepKey { seed: 0, step }, &|_, _| None));
        let outcomes = steps.collect::<Result<Vec<_>, _>>()?;
        println!("{:?}, on reference kernels: {:?}", outcomes[99].scalars, session.slow_operators());
    }
    Ok(())
}
