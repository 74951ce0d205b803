//! An operator defined outside this crate: an [`OpDef`] of the user, which graphs and plans treat like the built-in ones.
//! It runs on its reference kernel unless the device has a fast kernel for it.

use super::sample::Sample;
use super::{Backward, Op, OpDef, OpError, OpName};
use crate::dim::{Bindings, DimError};
use crate::dtype::DType;
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Part, Spec};
use crate::tensor::Tensor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A custom operator: an [`OpDef`] with its [`OpName`] that can be printed and shared. Every such type implements it.
pub trait CustomOp: OpDef + fmt::Debug + Any + Send + Sync {}

impl<T: OpDef + fmt::Debug + Any + Send + Sync> CustomOp for T {}

/// A shared custom operator. Two are equal if they are the same object.
#[derive(Clone)]
pub struct Custom(Arc<dyn CustomOp>);

impl Custom {
    /// Wraps an operator, so that [`Builder::push`] takes it.
    pub fn new(op: impl CustomOp) -> Custom {
        Custom(Arc::new(op))
    }

    /// The operator as `&dyn Any`, for callers that know its type.
    pub fn as_any(&self) -> &dyn Any {
        self.0.as_ref()
    }
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for Custom {
    fn eq(&self, other: &Custom) -> bool {
        self.0.name() == other.0.name() && Arc::as_ptr(&self.0).addr() == Arc::as_ptr(&other.0).addr()
    }
}

impl Serialize for Custom {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.name())
    }
}

impl<'de> Deserialize<'de> for Custom {
    /// Always an error: a name does not bring the code along.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Custom, D::Error> {
        let name = String::deserialize(deserializer)?;
        let why = format!(
            "`{name}` is an operator defined outside gulliver; build the graph in the program that defines it"
        );
        Err(serde::de::Error::custom(why))
    }
}

impl OpName for Custom {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn help(&self) -> &'static str {
        self.0.help()
    }
}

impl OpDef for Custom {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        self.0.spec(ins)
    }

    fn dtypes(&self, ins: &[Type], outputs: usize) -> Vec<DType> {
        self.0.dtypes(ins, outputs)
    }

    fn results(&self) -> usize {
        self.0.results()
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        self.0.grad(g, at)
    }

    fn bind(&self, sizes: &Bindings) -> Result<Option<Op>, DimError> {
        self.0.bind(sizes)
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        self.0.eval(ins, outs);
    }

    fn flops_per_point(&self) -> u64 {
        self.0.flops_per_point()
    }

    fn part(&self, part: &Part) -> Option<Op> {
        self.0.part(part)
    }

    fn is_view(&self) -> bool {
        self.0.is_view()
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        self.0.in_place()
    }

    /// None: samples belong to the operators inside.
    fn samples() -> Vec<Sample> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;
    use crate::graph::build::Builder;

    /// `y = scale · x³`, without a gradient.
    #[derive(Debug)]
    struct Cube {
        scale: f64,
    }

    impl OpName for Cube {
        fn name(&self) -> &'static str {
            "cube"
        }

        fn help(&self) -> &'static str {
            "third power"
        }
    }

    impl OpDef for Cube {
        fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
            super::super::check(ins, 1, &[])?;
            Ok("a b -> a b".parse()?)
        }

        fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
            for (y, x) in outs[0].data.iter_mut().zip(&ins[0].data) {
                *y = self.scale * x * x * x;
            }
        }

        fn samples() -> Vec<Sample> {
            vec![Sample::normal(Custom::new(Cube { scale: 2.0 }), &[&[2, 3]])]
        }
    }

    #[test]
    fn an_operator_from_outside_is_built_evaluated_and_printed() {
        let cube = Custom::new(Cube { scale: 2.0 });
        let mut g = Builder::new(false);
        let x = g.data("x", DType::F32, &[2, 3]).unwrap();
        let y = g.push1(cube.clone(), &[x]).unwrap();
        g.output("y", crate::role::OutputRole::Metric, y);
        let flat = g.data("flat", DType::F32, &[2]).unwrap();
        let wrong = g.push1(cube, &[flat]).unwrap_err().to_string();
        assert!(wrong.contains("cube(f32[2])") && wrong.contains("expected 2"), "{wrong}");
        let graph = g.finish();
        assert_eq!(graph.ty(y), &Type::f32(&[2, 3]));
        let text = graph.to_string();
        assert!(text.contains("{\"custom\":\"cube\"} %0"), "{text}");
        let refused = text.parse::<Graph>().unwrap_err().to_string();
        assert!(refused.contains("`cube` is an operator defined outside"), "{refused}");
        let sample = Cube::samples().remove(0);
        let (ins, [out]) = (sample.tensors(1), &sample.eval(&sample.tensors(1))[..]) else { panic!() };
        assert_eq!(out.data[4], 2.0 * ins[0].data[4].powi(3));
    }

    #[test]
    fn only_the_same_operator_is_equal() {
        let (a, b) = (Custom::new(Cube { scale: 1.0 }), Custom::new(Cube { scale: 1.0 }));
        assert!(a == a.clone() && a != b);
        assert_eq!(format!("{a:?}"), "Cube { scale: 1.0 }");
        assert_eq!(a.as_any().downcast_ref::<Cube>().unwrap().scale, 1.0);
    }
}
