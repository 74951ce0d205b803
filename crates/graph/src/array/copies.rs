//! Copies between members: nodes that stack the values of several members, or take one member's value out of a
//! stack. A copy is written where it is first needed, and only once.

use super::MemberPlace;
use crate::dim::Dim;
use crate::graph::op::Op;
use crate::graph::op::concat::Concat;
use crate::graph::op::reshape::Reshape;
use crate::graph::op::slice::Slice;
use crate::graph::{ObjectivePhase, Phase, Type, Value};
use crate::rewrite::Rewriter;
use std::collections::HashMap;

/// The graph of an array as it is written, and the copies in it.
pub(super) struct Copies {
    pub to: Rewriter,
    /// How many nodes copy something.
    pub count: usize,
    made: HashMap<Made, Value>,
}

/// The key of a copy: operator, operands, shape of the result, start of a slice, and whether an update reads it:
/// updates see sums over the partials.
type Made = (&'static str, Vec<Value>, Vec<Dim>, usize, bool);

impl Copies {
    /// From a graph without nodes.
    pub fn new(to: Rewriter) -> Copies {
        Copies { to, count: 0, made: HashMap::new() }
    }

    /// One operand for a node of all these members, and whether all of them read the same value.
    pub fn operand(&mut self, places: &[MemberPlace], at: ObjectivePhase) -> (Value, bool) {
        let same = places[0].row.is_none() && places.iter().all(|place| *place == places[0]);
        if same { (places[0].value, true) } else { (self.together(places, at), false) }
    }

    /// The value of one member alone.
    pub fn apart(&mut self, place: MemberPlace, at: ObjectivePhase) -> Value {
        let Some(row) = place.row else { return place.value };
        let one = self.of_one(place);
        let value = self.rows(place.value, row, 1, at);
        self.reshape(value, one.shape, at)
    }

    /// These values stacked along a first dimension.
    pub fn together(&mut self, places: &[MemberPlace], at: ObjectivePhase) -> Value {
        let one = self.of_one(places[0]);
        if let (Some(row), true) = (places[0].row, run(places) == places.len()) {
            return self.rows(places[0].value, row, places.len(), at);
        }
        let mut pieces = Vec::new();
        let mut rest = places;
        while let Some(&MemberPlace { value, row }) = rest.first() {
            let len = run(rest);
            let piece = row.map_or(value, |row| self.rows(value, row, len, at));
            pieces.push(self.reshape(piece, rows_of(&one, len), at));
            rest = &rest[len..];
        }
        let all = self.add(Concat { axis: 0 }.into(), pieces, rows_of(&one, places.len()), at);
        let mut shape = one.shape;
        shape.insert(0, Dim::from(places.len()));
        self.reshape(all, shape, at)
    }

    /// The type of a member's value.
    fn of_one(&self, place: MemberPlace) -> Type {
        let mut ty = self.to.graph().ty(place.value).clone();
        if place.row.is_some() {
            ty.shape.remove(0);
        }
        ty
    }

    /// The number of members that a value is stacked of.
    fn members(&self, value: Value) -> usize {
        let first = self.to.graph().ty(value).shape.first().and_then(Dim::as_const);
        first.map_or(0, |members| members as usize)
    }

    /// The rows of some members of a stacked value.
    fn rows(&mut self, value: Value, start: usize, len: usize, at: ObjectivePhase) -> Value {
        if start == 0 && self.members(value) == len {
            return value;
        }
        let mut shape = self.to.graph().ty(value).shape.clone();
        shape[0] = Dim::from(len);
        self.add(Slice { axis: 0, start, len: Dim::from(len), step: 1 }.into(), vec![value], shape, at)
    }

    fn reshape(&mut self, value: Value, shape: Vec<Dim>, at: ObjectivePhase) -> Value {
        if self.to.graph().ty(value).shape == shape {
            return value;
        }
        self.add(Reshape { shape: shape.clone() }.into(), vec![value], shape, at)
    }

    fn add(&mut self, op: Op, ins: Vec<Value>, shape: Vec<Dim>, at: ObjectivePhase) -> Value {
        let start = if let Op::Slice(slice) = &op { slice.start } else { 0 };
        let key = (op.def().name(), ins.clone(), shape, start, at.0 == Phase::Update);
        if let Some(value) = self.made.get(&key) {
            return *value;
        }
        self.count += usize::from(!op.def().is_view());
        let name = self.to.graph().value(ins[0]).name.clone();
        let out = self.to.add(op, ins, name, at);
        self.made.insert(key, out);
        out
    }
}

/// How many of the first places are consecutive rows of one value.
fn run(places: &[MemberPlace]) -> usize {
    let MemberPlace { value, row: Some(row) } = places[0] else { return 1 };
    let next = |(i, place): (usize, &MemberPlace)| *place == MemberPlace { value, row: Some(row + i) };
    places.iter().enumerate().take_while(|one| next((one.0, one.1))).count()
}

/// The shape of the values of `members` members one after the other, without a dimension of their own.
fn rows_of(one: &Type, members: usize) -> Vec<Dim> {
    let mut shape = one.shape.clone();
    match shape.first_mut() {
        Some(first) => *first = first.clone() * members as i64,
        None => shape.push(Dim::from(members)),
    }
    shape
}
