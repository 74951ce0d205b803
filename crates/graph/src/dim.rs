//! Symbolic extents. A [`Dim`] is a polynomial with integer coefficients over named symbols (batch,
//! length, height…) and floor divisions of such polynomials, kept in one normal form, so that equal
//! extents compare equal and the bytes of a graph are an exact formula of its input sizes.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::{Add, Mul, Sub};
use std::sync::Arc;

/// The symbol of the batch dimension, along which data is sliced into partials.
pub const BATCH: &str = "batch";

/// An extent: a constant, or a polynomial of symbols.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dim {
    /// Sorted by factors, no zero coefficients; the constant term has no factors and comes first.
    terms: Vec<Term>,
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Term {
    factors: Vec<Atom>,
    coefficient: i64,
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Atom {
    Symbol(Arc<str>),
    /// Largest integer not above the polynomial divided by the (positive) number.
    Floor(Box<Dim>, i64),
}

/// Why an extent has no value, or no text form could be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DimError {
    /// A symbol without a value.
    #[error("size `{0}` is not bound")]
    Unbound(String),
    /// The value is below zero or overflows.
    #[error("extent {dim} is {value} for these sizes")]
    OutOfRange {
        /// The formula.
        dim: String,
        /// Its value, in words when it overflows.
        value: String,
    },
    /// Not an extent.
    #[error("cannot read `{0}` as an extent")]
    Parse(String),
}

/// Values of symbols for one input.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bindings(Vec<(Arc<str>, usize)>);

impl Bindings {
    /// No symbol bound.
    pub fn new() -> Bindings {
        Bindings::default()
    }

    /// Adds or replaces one symbol's value.
    pub fn with(mut self, symbol: &str, value: usize) -> Bindings {
        self.set(symbol, value);
        self
    }

    /// Adds or replaces one symbol's value.
    pub fn set(&mut self, symbol: &str, value: usize) {
        match self.0.binary_search_by(|(s, _)| s.as_ref().cmp(symbol)) {
            Ok(i) => self.0[i].1 = value,
            Err(i) => self.0.insert(i, (symbol.into(), value)),
        }
    }

    /// The value of a symbol.
    pub fn get(&self, symbol: &str) -> Option<usize> {
        self.0.binary_search_by(|(s, _)| s.as_ref().cmp(symbol)).ok().map(|i| self.0[i].1)
    }

    /// All pairs, sorted by symbol.
    pub fn iter(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.iter().map(|(s, v)| (s.as_ref(), *v))
    }
}

impl Dim {
    /// A named size, bound per input.
    pub fn symbol(name: &str) -> Dim {
        Dim { terms: vec![Term { factors: vec![Atom::Symbol(name.into())], coefficient: 1 }] }
    }

    /// The value if it does not depend on any symbol.
    pub fn as_const(&self) -> Option<i64> {
        match self.terms.as_slice() {
            [] => Some(0),
            [t] if t.factors.is_empty() => Some(t.coefficient),
            _ => None,
        }
    }

    /// The name, if this is a bare symbol.
    pub fn as_symbol(&self) -> Option<&str> {
        match self.terms.as_slice() {
            [Term { factors, coefficient: 1 }] => match factors.as_slice() {
                [Atom::Symbol(s)] => Some(s),
                _ => None,
            },
            _ => None,
        }
    }

    /// Largest integer not above `self / by`. `by` must be positive.
    pub fn floor_div(&self, by: i64) -> Dim {
        assert!(by > 0, "division of an extent by {by}");
        if by == 1 {
            return self.clone();
        }
        // Whole multiples leave the floor, so that (2*h+2)/2 is h+1.
        let (mut whole, mut rest) = (Vec::new(), Vec::new());
        for t in &self.terms {
            let q = t.coefficient.div_euclid(by);
            let r = t.coefficient.rem_euclid(by);
            if q != 0 {
                whole.push(Term { factors: t.factors.clone(), coefficient: q });
            }
            if r != 0 {
                rest.push(Term { factors: t.factors.clone(), coefficient: r });
            }
        }
        let rest = Dim { terms: rest };
        let floor = match rest.as_const() {
            Some(c) => Dim::from(c.div_euclid(by)),
            None => {
                Dim { terms: vec![Term { factors: vec![Atom::Floor(Box::new(rest), by)], coefficient: 1 }] }
            }
        };
        Dim { terms: whole } + floor
    }

    /// `self / by` when that is again a polynomial: every term divisible by the single term `by`.
    pub fn exact_div(&self, by: &Dim) -> Option<Dim> {
        if self == by {
            return Some(Dim::from(1));
        }
        let [divisor] = by.terms.as_slice() else { return None };
        let mut terms = Vec::with_capacity(self.terms.len());
        for t in &self.terms {
            if t.coefficient % divisor.coefficient != 0 {
                return None;
            }
            let mut factors = t.factors.clone();
            for f in &divisor.factors {
                let at = factors.iter().position(|g| g == f)?;
                factors.remove(at);
            }
            terms.push(Term { factors, coefficient: t.coefficient / divisor.coefficient });
        }
        Some(normal(terms))
    }

    /// The value for these sizes.
    pub fn bind(&self, sizes: &Bindings) -> Result<usize, DimError> {
        let value = self.value(sizes)?;
        usize::try_from(value)
            .map_err(|_| DimError::OutOfRange { dim: self.to_string(), value: value.to_string() })
    }

    fn value(&self, sizes: &Bindings) -> Result<i64, DimError> {
        let overflow = || DimError::OutOfRange { dim: self.to_string(), value: "too large".into() };
        let mut sum = 0i64;
        for t in &self.terms {
            let mut product = t.coefficient;
            for f in &t.factors {
                let v = match f {
                    Atom::Symbol(s) => {
                        let v = sizes.get(s).ok_or_else(|| DimError::Unbound(s.to_string()))?;
                        i64::try_from(v).map_err(|_| overflow())?
                    }
                    Atom::Floor(d, by) => d.value(sizes)?.div_euclid(*by),
                };
                product = product.checked_mul(v).ok_or_else(overflow)?;
            }
            sum = sum.checked_add(product).ok_or_else(overflow)?;
        }
        Ok(sum)
    }

    /// Calls `f` with every symbol the extent depends on.
    pub fn symbols(&self, f: &mut impl FnMut(&str)) {
        for t in &self.terms {
            for a in &t.factors {
                match a {
                    Atom::Symbol(s) => f(s),
                    Atom::Floor(d, _) => d.symbols(f),
                }
            }
        }
    }

    /// The inverse of the printed form: sums of products of numbers, symbols, `(…)` and `(…)/n`.
    pub fn parse(text: &str) -> Result<Dim, DimError> {
        let tokens: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
        let mut at = 0;
        let dim = parse_sum(&tokens, &mut at, 0).filter(|_| at == tokens.len());
        dim.ok_or_else(|| DimError::Parse(text.to_string()))
    }
}

fn parse_sum(t: &[char], at: &mut usize, depth: usize) -> Option<Dim> {
    if depth > 64 {
        return None;
    }
    let negative = t.get(*at) == Some(&'-');
    if negative {
        *at += 1;
    }
    let first = parse_product(t, at, depth)?;
    let mut sum = if negative { Dim::from(0).checked_sub(&first)? } else { first };
    while let Some(sign @ ('+' | '-')) = t.get(*at) {
        *at += 1;
        let next = parse_product(t, at, depth)?;
        sum = if *sign == '+' { sum.checked_add(&next)? } else { sum.checked_sub(&next)? };
    }
    Some(sum)
}

fn parse_product(t: &[char], at: &mut usize, depth: usize) -> Option<Dim> {
    let mut product = parse_factor(t, at, depth)?;
    while t.get(*at) == Some(&'*') {
        *at += 1;
        product = product.checked_mul(&parse_factor(t, at, depth)?)?;
    }
    Some(product)
}

fn parse_factor(t: &[char], at: &mut usize, depth: usize) -> Option<Dim> {
    let start = *at;
    let word = |at: &mut usize, ok: fn(char) -> bool| {
        while t.get(*at).is_some_and(|&c| ok(c)) {
            *at += 1;
        }
        t[start..*at].iter().collect::<String>()
    };
    match *t.get(start)? {
        '(' => {
            *at += 1;
            let inner = parse_sum(t, at, depth + 1)?;
            if t.get(*at) != Some(&')') {
                return None;
            }
            *at += 1;
            if t.get(*at) != Some(&'/') {
                return Some(inner);
            }
            *at += 1;
            let from = *at;
            while t.get(*at).is_some_and(char::is_ascii_digit) {
                *at += 1;
            }
            let by: i64 = t[from..*at].iter().collect::<String>().parse().ok().filter(|&by| by > 0)?;
            Some(inner.floor_div(by))
        }
        c if c.is_ascii_digit() => Some(Dim::from(word(at, |c| c.is_ascii_digit()).parse::<i64>().ok()?)),
        c if c.is_ascii_alphabetic() || c == '_' => {
            Some(Dim::symbol(&word(at, |c| c.is_ascii_alphanumeric() || c == '_')))
        }
        _ => None,
    }
}

/// Sorts, merges equal monomials and drops zeros.
fn normal(mut terms: Vec<Term>) -> Dim {
    terms.sort();
    let mut out: Vec<Term> = Vec::with_capacity(terms.len());
    for t in terms {
        match out.last_mut() {
            Some(last) if last.factors == t.factors => last.coefficient += t.coefficient,
            _ => out.push(t),
        }
    }
    out.retain(|t| t.coefficient != 0);
    Dim { terms: out }
}

impl Dim {
    /// Sum, unless coefficients could overflow.
    fn checked_add(&self, other: &Dim) -> Option<Dim> {
        self.modest(other, i64::checked_add).then(|| self + other)
    }

    fn checked_sub(&self, other: &Dim) -> Option<Dim> {
        self.modest(other, i64::checked_add).then(|| self - other)
    }

    fn checked_mul(&self, other: &Dim) -> Option<Dim> {
        let small = self.terms.len() * other.terms.len() <= 1024;
        (small && self.modest(other, i64::checked_mul)).then(|| self * other)
    }

    fn modest(&self, other: &Dim, combine: fn(i64, i64) -> Option<i64>) -> bool {
        let size =
            |d: &Dim| d.terms.iter().try_fold(0i64, |s, t| s.checked_add(t.coefficient.checked_abs()?));
        size(self).zip(size(other)).and_then(|(a, b)| combine(a, b)).is_some()
    }
}

impl From<usize> for Dim {
    fn from(value: usize) -> Dim {
        Dim::from(i64::try_from(value).expect("an extent fits in 63 bits"))
    }
}

impl From<i64> for Dim {
    fn from(value: i64) -> Dim {
        normal(vec![Term { factors: Vec::new(), coefficient: value }])
    }
}

impl From<i32> for Dim {
    fn from(value: i32) -> Dim {
        Dim::from(i64::from(value))
    }
}

impl From<&str> for Dim {
    /// A symbol.
    fn from(name: &str) -> Dim {
        Dim::symbol(name)
    }
}

impl From<&Dim> for Dim {
    fn from(d: &Dim) -> Dim {
        d.clone()
    }
}

impl<D: Into<Dim>> Add<D> for &Dim {
    type Output = Dim;
    fn add(self, other: D) -> Dim {
        let mut terms = self.terms.clone();
        terms.extend(other.into().terms);
        normal(terms)
    }
}

impl<D: Into<Dim>> Sub<D> for &Dim {
    type Output = Dim;
    fn sub(self, other: D) -> Dim {
        let mut terms = self.terms.clone();
        terms.extend(other.into().terms.into_iter().map(|t| Term { coefficient: -t.coefficient, ..t }));
        normal(terms)
    }
}

impl<D: Into<Dim>> Mul<D> for &Dim {
    type Output = Dim;
    fn mul(self, other: D) -> Dim {
        let other = other.into();
        let mut terms = Vec::with_capacity(self.terms.len() * other.terms.len());
        for a in &self.terms {
            for b in &other.terms {
                let mut factors = a.factors.clone();
                factors.extend(b.factors.iter().cloned());
                factors.sort();
                terms.push(Term { factors, coefficient: a.coefficient * b.coefficient });
            }
        }
        normal(terms)
    }
}

macro_rules! by_value {
    ($trait:ident, $method:ident) => {
        impl<D: Into<Dim>> $trait<D> for Dim {
            type Output = Dim;
            fn $method(self, other: D) -> Dim {
                (&self).$method(other)
            }
        }
    };
}
by_value!(Add, add);
by_value!(Sub, sub);
by_value!(Mul, mul);

/// The number of elements of a shape.
pub fn product<'a>(dims: impl IntoIterator<Item = &'a Dim>) -> Dim {
    dims.into_iter().fold(Dim::from(1), |a, d| a * d)
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.terms.is_empty() {
            return f.write_str("0");
        }
        for (i, t) in self.terms.iter().enumerate() {
            match (i, t.coefficient < 0) {
                (_, true) => f.write_str("-")?,
                (0, false) => {}
                (_, false) => f.write_str("+")?,
            }
            let c = t.coefficient.unsigned_abs();
            if t.factors.is_empty() || c != 1 {
                write!(f, "{c}")?;
            }
            for (j, a) in t.factors.iter().enumerate() {
                if j > 0 || c != 1 {
                    f.write_str("*")?;
                }
                match a {
                    Atom::Symbol(s) => f.write_str(s)?,
                    Atom::Floor(d, by) => write!(f, "({d})/{by}")?,
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Dim {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.as_const() {
            Some(c) => s.serialize_i64(c),
            None => s.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Dim {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Dim, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(i64),
            Text(String),
        }
        match Form::deserialize(d)? {
            Form::Number(n) => Ok(Dim::from(n)),
            Form::Text(t) => Dim::parse(&t).map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_is_normalised() {
        let (b, t) = (Dim::symbol("b"), Dim::symbol("t"));
        assert_eq!(&b * &t, &t * &b);
        assert_eq!((&b + 1) * (&b - 1), &b * &b - 1);
        assert_eq!(&b - &b, Dim::from(0));
        assert_eq!((&b * 2 + 2).floor_div(2), &b + 1);
        assert_eq!((&b * &t * 6).exact_div(&(&t * 3)), Some(&b * 2));
        assert_eq!((&b + 1).exact_div(&t), None);
    }

    #[test]
    fn values_and_errors() {
        let h = Dim::symbol("h");
        let conv = (&h + 2 - 3).floor_div(2) + 1;
        assert_eq!(conv.to_string(), "(1+h)/2");
        assert_eq!(conv.bind(&Bindings::new().with("h", 224)), Ok(112));
        assert_eq!(conv.bind(&Bindings::new()), Err(DimError::Unbound("h".into())));
        assert!((&h - 5).bind(&Bindings::new().with("h", 3)).is_err());
        let huge = &(&h * &h) * &(&h * &h);
        assert!(huge.bind(&Bindings::new().with("h", usize::MAX / 4)).is_err());
    }

    #[test]
    fn text_round_trips() {
        for text in ["0", "7", "b", "-3+b", "2*b*t", "1+3*(1+h)/2*w", "(b+2*(h+w)/3)/5"] {
            let d = Dim::parse(text).unwrap();
            assert_eq!(Dim::parse(&d.to_string()).unwrap(), d, "{text}");
        }
        for text in ["", "2*", "a b+", "(a", "a/0", "(a)/0", "999999999999999999999", "9223372036854775807*9"]
        {
            assert!(Dim::parse(text).is_err(), "{text}");
        }
    }
}
