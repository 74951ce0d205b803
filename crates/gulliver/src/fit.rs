//! Fits a model to its data: derives settings that the job leaves open, and refuses models and settings that do not match
//! the data.

mod weights;

pub use weights::class_weights;

use crate::error::{Error, JobError};
use crate::job::Job;
use gulliver_graph::dtype::DType;
use gulliver_graph::model::param::{Param, ParamValue};
use gulliver_graph::model::{MODELS, ModelInput, ModelRow};
use gulliver_run::data::{DataError, DataInfo, Dataset};

/// Properties of a data set that decide which models fit.
#[derive(Clone, Debug, PartialEq)]
pub struct DataFacts {
    /// Its description.
    pub info: DataInfo,
    /// Whether `x` is ids of tokens rather than numbers.
    tokens: bool,
    /// Whether `x` is whole numbers that are no tokens.
    wholes: bool,
    target: Target,
    /// Tokens of the longest sequence; 0 for other data.
    pub longest: usize,
}

/// The target of an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Class,
    Numbers(usize),
    Tokens,
    /// Several whole numbers, which no model predicts.
    Wholes(usize),
    Nothing,
}

impl Target {
    /// The `head` of a model that predicts it; every family has its own name for tokens.
    fn head(self, row: &ModelRow) -> Option<&'static str> {
        match self {
            Target::Class => Some("classify"),
            Target::Numbers(_) => Some("regress"),
            Target::Tokens => row.family.heads.iter().find(|head| predicts_tokens(head)).copied(),
            Target::Wholes(_) | Target::Nothing => None,
        }
    }

    fn named(self, tokens: bool) -> &'static str {
        match (self, tokens) {
            (Target::Class, true) => "a class for each text",
            (Target::Class, false) => "a class for each example",
            (Target::Numbers(_), true) => "numbers to predict for each text",
            (Target::Numbers(_), false) => "numbers to predict for each example",
            (Target::Tokens, _) => "a token to predict at every place of a text",
            (Target::Wholes(_), _) => "several whole numbers for each example",
            (Target::Nothing, _) => "nothing to predict",
        }
    }
}

impl DataFacts {
    /// Looks at the first example and at the lengths of all.
    pub fn of(train: &dyn Dataset, validation: Option<&dyn Dataset>) -> Result<DataFacts, DataError> {
        let info = train.info();
        let longest = [Some(train), validation].into_iter().flatten().map(longest).max().unwrap_or(0);
        let (mut tokens, mut wholes, mut target) = (info.vocabulary.is_some(), false, Target::Nothing);
        if !train.is_empty() {
            let batch = train.batch(&[0])?;
            let whole = batch.get("x").filter(|x| x.dtype() == DType::I64);
            tokens = whole.is_some_and(|x| x.shape().len() == 2);
            wholes = whole.is_some() && !tokens;
            target = match batch.get("y").map(|y| (y.dtype(), y.shape())) {
                Some((DType::F32, shape)) => Target::Numbers(shape[1..].iter().product()),
                Some((_, [_])) => Target::Class,
                Some((_, [_, 1])) if !tokens => Target::Class,
                Some(_) if tokens => Target::Tokens,
                Some((_, shape)) => Target::Wholes(shape[1..].iter().product()),
                None => Target::Nothing,
            };
        }
        Ok(DataFacts { info, tokens, wholes, target, longest })
    }

    /// Whether there is a token to predict at every position of a text.
    pub fn predicts_tokens(&self) -> bool {
        self.target == Target::Tokens
    }

    /// Channels, height and width, if examples are images.
    fn image(&self) -> Option<[usize; 3]> {
        match self.info.shape[..] {
            [c, h, w] if !self.tokens && c > 0 && h > 0 && w > 0 => Some([c, h, w]),
            _ => None,
        }
    }

    /// Channels and extent, if examples are cubes.
    fn cube(&self) -> Option<[usize; 2]> {
        match self.info.shape[..] {
            [c, d, h, w] if !self.tokens && c > 0 && d > 0 && d == h && d == w => Some([c, d]),
            _ => None,
        }
    }

    /// Points of a cloud, if examples are clouds.
    fn points(&self) -> Option<usize> {
        match self.info.shape[..] {
            [3, n] if !self.tokens && n > 0 => Some(n),
            _ => None,
        }
    }

    /// Numbers to predict, or classes.
    fn outputs(&self) -> Option<usize> {
        match self.target {
            Target::Numbers(n) => Some(n),
            _ => self.info.classes,
        }
    }

    /// A description of `x`.
    fn examples(&self) -> String {
        let shape: Vec<String> = self.info.shape.iter().map(usize::to_string).collect();
        match self.info.shape[..] {
            _ if self.tokens => "text (whole numbers are read as tokens)".into(),
            [n] => format!("rows of {n} numbers"),
            [c, h, w] => format!("images of {h}x{w} pixels with {c} channels"),
            _ => format!("blocks of {} numbers", shape.join("x")),
        }
    }

    /// Models that read such examples.
    fn models(&self) -> &'static str {
        match self.info.shape.len() {
            _ if self.tokens => "\"gpt\", \"lstm\" or \"bert\"",
            3 => "\"cnn\" or \"resnet18\"",
            _ if self.points().is_some() => "\"pointnet\" or \"mlp\"",
            _ if self.cube().is_some() && self.target.head_is("regress") => "\"cosmoflow\" or \"mlp\"",
            _ => "\"mlp\"",
        }
    }
}

impl Target {
    fn head_is(self, head: &str) -> bool {
        matches!((self, head), (Target::Class, "classify") | (Target::Numbers(_), "regress"))
    }
}

fn predicts_tokens(head: &str) -> bool {
    matches!(head, "lm" | "mlm")
}

/// Tokens of the longest sequence; 0 for other data.
fn longest(set: &dyn Dataset) -> usize {
    let info = set.info();
    match (info.vocabulary, info.shape.first()) {
        (None, _) | (_, None) => 0,
        (_, Some(0)) => (0..set.len()).filter_map(|i| set.length(i)).max().unwrap_or(0),
        (_, Some(&length)) => length,
    }
}

fn row_of(name: &str) -> Option<&'static ModelRow> {
    MODELS.iter().find(|row| row.name == name)
}

fn int(n: usize) -> ParamValue {
    ParamValue::Int(n as i64)
}

/// Settings that the job leaves open and the data decides: head, vocabulary, classes, image size…
pub fn fit(name: &str, given: &[(String, ParamValue)], facts: &DataFacts) -> Vec<(String, ParamValue)> {
    let Some(row) = row_of(name) else { return Vec::new() };
    let mut fitted = Vec::new();
    for param in row.params() {
        if given.iter().any(|(n, _)| n == param.name) {
            continue;
        }
        if let Some(value) = answer(row, &param, facts).filter(|value| *value != param.default) {
            fitted.push((param.name.to_string(), value));
        }
    }
    fitted
}

/// The value of a parameter that follows from the data.
fn answer(row: &ModelRow, param: &Param, facts: &DataFacts) -> Option<ParamValue> {
    let volumes = row.family.takes == ModelInput::Volumes;
    match (param.name, &param.default) {
        ("head", _) => {
            let head = facts.target.head(row).filter(|head| row.family.heads.contains(head));
            head.map(|head| ParamValue::Text(head.into()))
        }
        ("vocab", _) => facts.info.vocabulary.map(int),
        ("classes" | "outputs", _) => facts.outputs().map(int),
        ("channels", _) if volumes => facts.cube().map(|[c, _]| int(c)),
        ("size", _) if volumes => facts.cube().map(|[_, size]| int(size)),
        ("channels", _) => facts.image().map(|[c, ..]| int(c)),
        ("size", _) => match facts.image()? {
            [_, h, w] if h == w => Some(int(h)),
            [_, h, w] => param.pair.then(|| ParamValue::Ints(vec![h as i64, w as i64].into())),
        },
        ("points", _) => facts.points().map(int),
        ("context", ParamValue::Int(default)) => {
            (facts.longest as i64 > *default).then_some(int(facts.longest))
        }
        ("sizes", ParamValue::Ints(default)) => {
            let mut sizes = default.to_vec();
            let input: usize = facts.info.shape.iter().product();
            if let (Some(first), true) = (sizes.first_mut(), input > 0) {
                *first = input as i64;
            }
            if let (Some(last), Some(outputs)) = (sizes.last_mut(), facts.outputs()) {
                *last = outputs as i64;
            }
            Some(ParamValue::Ints(sizes.into()))
        }
        _ => None,
    }
}

/// Refuses a model that does not match the data, and settings that are too small for it; the error names the field to
/// change. `settings` are the given and the fitted ones.
pub fn check_fit(
    job: &Job,
    given: &[(String, ParamValue)],
    settings: &[(String, ParamValue)],
    facts: &DataFacts,
) -> Result<(), Error> {
    if let Some(row) = row_of(&job.model.name) {
        check_input(job, row, facts)?;
        check_target(job, row, settings, facts)?;
    }
    let outputs = match facts.target {
        Target::Numbers(_) => "numbers to predict",
        _ => "classes",
    };
    for (name, value) in given {
        let (has, needed, what) = match (name.as_str(), value) {
            ("vocab", ParamValue::Int(n)) => (*n, facts.info.vocabulary, "different tokens"),
            ("classes" | "outputs", ParamValue::Int(n)) => (*n, facts.outputs(), outputs),
            ("context", ParamValue::Int(n)) => (*n, Some(facts.longest), "tokens in its longest sequence"),
            ("sizes", ParamValue::Ints(sizes)) => {
                (sizes.last().copied().unwrap_or(0), facts.outputs(), outputs)
            }
            _ => continue,
        };
        let Some(needed) = needed else { continue };
        if needed as i64 > has {
            let problem = format!("{has} is too few: the data has {needed} {what}");
            return Err(job.error(&format!("model.{name}"), problem).into());
        }
        if outputs == what && matches!(facts.target, Target::Numbers(_)) && needed as i64 != has {
            let problem = format!("{has} is too many: the data has {needed} {what}");
            return Err(job.error(&format!("model.{name}"), problem).into());
        }
    }
    check_extents(job, given, facts)
}

/// Refuses a model that cannot read such examples.
fn check_input(job: &Job, row: &ModelRow, facts: &DataFacts) -> Result<(), JobError> {
    let (takes, fits) = match row.family.takes {
        ModelInput::Vectors => ("numbers", !facts.tokens),
        ModelInput::Images => ("images", facts.image().is_some()),
        ModelInput::ImagesOf(_) => ("images", facts.image().is_some()),
        ModelInput::Volumes => ("cubes of numbers", facts.cube().is_some()),
        ModelInput::Points => ("clouds of points", facts.points().is_some()),
        ModelInput::Tokens => ("text", facts.tokens),
    };
    let (model, kind) = (&job.model.name, &job.data.options.kind);
    if facts.wholes {
        let problem = format!(
            "x has whole numbers, and `{model}` takes {takes}; set data.normalise = true to have them read as numbers"
        );
        return Err(job.error("data.normalise", problem));
    }
    if !fits {
        let (examples, models) = (facts.examples(), facts.models());
        let mut problem =
            format!("`{model}` takes {takes}, but data.kind = \"{kind}\" has {examples}; use {models}");
        if facts.tokens && kind == "npy" {
            problem += ", or set data.normalise = true to have whole numbers read as numbers";
        }
        return Err(job.error("model.name", problem));
    }
    if let (ModelInput::ImagesOf(size), Some([_, h, w])) = (row.family.takes, facts.image())
        && [h, w] != [size, size]
    {
        let problem = format!(
            "`{model}` takes images of {size}x{size} pixels, but those of data.kind = \"{kind}\" have {h}x{w}; \
             set data.size = {size} where the kind has it, or use images of that size"
        );
        return Err(job.error("model.name", problem));
    }
    Ok(())
}

/// Refuses a model that predicts something else than the data has.
fn check_target(
    job: &Job,
    row: &ModelRow,
    settings: &[(String, ParamValue)],
    facts: &DataFacts,
) -> Result<(), JobError> {
    let (model, kind, heads) = (&job.model.name, &job.data.options.kind, row.family.heads);
    let Some(default) = heads.first() else { return Ok(()) };
    if let Target::Wholes(n) = facts.target {
        let problem =
            format!("y has {n} whole numbers for each example; store floats to have them predicted");
        return Err(job.error("data.path", problem));
    }
    let has = format!("data.kind = \"{kind}\" has {}", facts.target.named(facts.tokens));
    let wanted = facts.target.head(row);
    let Some(wanted) = wanted.filter(|wanted| heads.contains(wanted)) else {
        let problem = format!("`{model}` predicts {}, but {has}; use {}", predicted(default), facts.models());
        return Err(job.error("model.name", problem));
    };
    let head = settings.iter().find(|(name, _)| name == "head").map(|(_, value)| value.to_string());
    let head = head.as_deref().unwrap_or(default);
    // The model itself refuses unknown heads.
    if head != wanted && heads.contains(&head) {
        let problem = format!(
            "\"{head}\" predicts {}, but {has}; set model.head = \"{wanted}\", or leave it out",
            predicted(head)
        );
        return Err(job.error("model.head", problem));
    }
    // Tokens of arrays may be hidden already.
    if head == "mlm" && job.data.options.masked == 0.0 && facts.info.vocabulary.is_some() {
        let problem = format!(
            "`{model}` predicts hidden tokens, and none are hidden; set data.masked = 0.15, or use \"gpt\" or \
             \"lstm\" to predict the next token"
        );
        return Err(job.error("data.masked", problem));
    }
    Ok(())
}

fn predicted(head: &str) -> &'static str {
    match head {
        "classify" => "a class",
        "regress" => "numbers",
        "lm" => "the next token",
        _ => "hidden tokens",
    }
}

/// Refuses extents that differ from those of the data.
fn check_extents(job: &Job, given: &[(String, ParamValue)], facts: &DataFacts) -> Result<(), Error> {
    let volumes = row_of(&job.model.name).is_some_and(|row| row.family.takes == ModelInput::Volumes);
    let [channels, height, width] = match (facts.image(), facts.cube()) {
        (Some(image), _) => image.map(Some),
        (None, Some([c, size])) if volumes => [Some(c), Some(size), Some(size)],
        _ => [None; 3],
    };
    for (name, value) in given {
        let (has, wanted) = match (name.as_str(), value) {
            ("channels", ParamValue::Int(n)) => (vec![*n], vec![channels]),
            ("size", ParamValue::Int(n)) => (vec![*n, *n], vec![height, width]),
            ("size", ParamValue::Ints(both)) => (both.to_vec(), vec![height, width]),
            ("points", ParamValue::Int(n)) => (vec![*n], vec![facts.points()]),
            ("sizes", ParamValue::Ints(sizes)) => {
                let input = Some(facts.info.shape.iter().product()).filter(|_| !facts.tokens);
                (sizes.iter().take(1).copied().collect(), vec![input])
            }
            _ => continue,
        };
        let differ = has.iter().zip(&wanted).any(|(has, wanted)| wanted.is_some_and(|n| n as i64 != *has));
        if differ {
            let examples = facts.examples();
            let problem = match name.as_str() {
                "sizes" => format!(
                    "starts with {}, but the data has {examples}; start with {}, or leave it out",
                    has[0],
                    wanted[0].unwrap_or(0)
                ),
                _ => format!("is {value}, but the data has {examples}; leave it out to have it fitted"),
            };
            return Err(job.error(&format!("model.{name}"), problem).into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
