//! Scalar outputs of a step or an evaluation: numbers that have a name for people and a role for programs.

use gulliver_graph::role::{OutputRole, OutputScope};
use std::collections::BTreeMap;
use std::ops::Index;

/// One scalar output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scalar {
    /// Its role.
    pub role: OutputRole,
    /// The partials that it is summed over.
    pub scope: OutputScope,
    /// The number.
    pub value: f64,
}

/// Scalar outputs by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scalars(BTreeMap<String, Scalar>);

impl Scalars {
    /// Adds a scalar; a sum over all devices replaces that of one.
    pub fn insert(&mut self, name: &str, scalar: Scalar) {
        let known = self.0.get(name).is_some_and(|known| known.scope == OutputScope::AllDevices);
        if !known || scalar.scope == OutputScope::AllDevices {
            self.0.insert(name.to_string(), scalar);
        }
    }

    /// The number of that name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).map(|scalar| scalar.value)
    }

    /// The first number with that role.
    pub fn of(&self, role: OutputRole) -> Option<f64> {
        self.0.values().find(|scalar| scalar.role == role).map(|scalar| scalar.value)
    }

    /// Names and losses of the objectives.
    pub fn losses(&self) -> impl Iterator<Item = (&str, f64)> {
        self.iter()
            .filter(|(_, scalar)| scalar.role == OutputRole::Loss)
            .map(|(name, loss)| (name, loss.value))
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Scalar)> {
        self.0.iter().map(|(name, scalar)| (name.as_str(), *scalar))
    }

    /// All of them, by name, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Scalar)> {
        self.0.iter_mut().map(|(name, scalar)| (name.as_str(), scalar))
    }

    /// Adds the scalars of another device for the same step.
    pub fn extend(&mut self, other: Scalars) {
        self.0.extend(other.0);
    }

    /// Numbers by name, without those of these roles.
    pub fn without(&self, roles: &[OutputRole]) -> BTreeMap<String, f64> {
        let kept = self.iter().filter(|(_, scalar)| !roles.contains(&scalar.role));
        kept.map(|(name, scalar)| (name.to_string(), scalar.value)).collect()
    }
}

impl Index<&str> for Scalars {
    type Output = f64;

    fn index(&self, name: &str) -> &f64 {
        &self.0[name].value
    }
}
