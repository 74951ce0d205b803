//! Strategies in words: their names, a sentence for one, and the meanings of the words in names.

use crate::strategy::{ClusterStrategy, Cut, LayerResidence, Order, Recompute};
use gulliver_plan::devices::strategy::{ALONE, Strategy};
use std::fmt;

/// A name and its meaning.
type Named = (&'static str, &'static str);

const TENSOR: Named = ("tensor", "devices share the matrices of every layer");
const SEQUENCE: Named =
    ("sequence", "devices share the matrices of every layer, and the sequence between them");
const PAGED: Named = ("paged", "virtual memory of each device");
const ZERO_2: Named = ("zero-2", "optimizer states and gradients are divided among the copies");

/// Names that the planner's strategies do not have.
#[cfg(test)]
const ON_CLUSTERS_ALONE: [Named; 4] = [TENSOR, SEQUENCE, PAGED, ZERO_2];

/// A row of the planner's strategies, which also have these names.
fn planned(name: &'static str) -> Named {
    (name, Strategy::named(name).map_or("", |strategy| strategy.help))
}

/// A word of a strategy's name.
struct Word {
    text: String,
    /// The word with an example's numbers, as legends have it.
    example: &'static str,
    meaning: &'static str,
}

impl ClusterStrategy {
    /// The names of the planner's strategies that it combines, or of those that only clusters have.
    fn families(&self) -> Vec<Named> {
        match self.stream {
            LayerResidence::Resident => {}
            LayerResidence::Paged => return vec![PAGED],
            LayerResidence::Replicas(_) => return vec![planned("harmony-dp")],
            LayerResidence::Wrapped(_) => return vec![planned("harmony-pp")],
        }
        let cut = match self.cut {
            _ if self.ways == 1 => None,
            Cut::Whole => None,
            Cut::Spatial => Some(planned("spatial")),
            Cut::Filter => Some(planned("filter")),
            Cut::Channel => Some(planned("channel")),
            Cut::Tensor => Some(TENSOR),
            Cut::Sequence => Some(SEQUENCE),
            Cut::Mixed => Some(planned("cut")),
        };
        let data = (self.data > 1).then(|| planned("data"));
        let pipeline = (self.stages > 1).then(|| planned("pipeline"));
        let all: Vec<Named> = [data, cut, pipeline].into_iter().flatten().collect();
        if all.is_empty() { vec![(ALONE, "one device does everything")] } else { all }
    }

    /// The family it is of: `alone`, `data`, `data+filter`, `tensor+pipeline`…
    pub fn family(&self) -> String {
        self.families().iter().map(|family| family.0).collect::<Vec<_>>().join("+")
    }

    /// The words of its name after the family.
    fn words(&self) -> Vec<Word> {
        let mut words = Vec::new();
        let mut word = |text: String, example, meaning| words.push(Word { text, example, meaning });
        let extents = [("d", self.data), ("t", self.ways), ("p", self.stages)];
        let divided = extents.into_iter().filter(|(_, extent)| *extent > 1 && *extent < self.devices());
        let divided: Vec<String> = divided.map(|(letter, extent)| format!("{letter}{extent}")).collect();
        if !divided.is_empty() {
            let meaning = "8 copies of the model, each on 4 devices that share layers x 2 pipeline stages";
            word(divided.join("x"), "d8xt4xp2", meaning);
        }
        let meaning = "a micro-batch of 2 samples: that many pass through the model at a time";
        word(format!("m{}", self.micro_batch), "m2", meaning);
        if let LayerResidence::Replicas(packs) | LayerResidence::Wrapped(packs) = self.stream {
            word(format!("packs{packs}"), "packs52", "layers come from host memory in 52 packs");
        }
        let mut plain = |(name, meaning): Named| word(name.to_string(), name, meaning);
        match self.order {
            _ if self.stages == 1 || self.stream != LayerResidence::Resident => {}
            Order::Gpipe => plain(("gpipe", "pipeline schedule: all forward, then all backward")),
            Order::Alternating => plain(("1f1b", "pipeline schedule: one forward, one backward")),
            Order::Interleaved(pieces) => {
                let meaning =
                    "pipeline schedule: one forward, one backward, with 4 pieces of the model on every stage";
                word(format!("interleaved{pieces}"), "interleaved4", meaning);
            }
        }
        let mut plain = |(name, meaning): Named| word(name.to_string(), name, meaning);
        match self.shard {
            0 => {}
            1 => plain(planned("zero-1")),
            2 => plain(ZERO_2),
            _ => plain(planned("zero")),
        }
        match self.recompute {
            Recompute::Nothing => {}
            Recompute::Selective => {
                plain(("selective", "attention scores are recomputed in the backward pass"));
            }
            Recompute::Full => plain(("recompute", "every layer is recomputed in the backward pass")),
            Recompute::Planned => plain(("planned", "as few layers are recomputed as memory demands")),
        }
        if self.offload {
            plain(("offload", "optimizer states are in host memory"));
        }
        words
    }

    /// A sentence that says what the devices do; `batch` is the samples of a step.
    pub fn in_words(&self, batch: u32) -> String {
        let mut parts = Vec::new();
        match self.stream {
            LayerResidence::Resident => parts.push(self.who_does_what()),
            LayerResidence::Paged => parts.push(format!(
                "{} whose memory is virtual: pages come from host memory whenever they are touched",
                counted(self.data, "device", "devices")
            )),
            LayerResidence::Replicas(packs) => parts.push(format!(
                "{}, each with its share of the batch; the model lives in host memory and comes to every device \
                 in {packs} packs of layers, one after the other",
                counted(self.data, "device", "devices")
            )),
            LayerResidence::Wrapped(packs) => parts.push(format!(
                "the model lives in host memory; {packs} packs of layers go round {}, which hand samples on",
                counted(self.stages, "device", "devices")
            )),
        }
        let micro_batches = self.micro_batches(batch).max(1);
        let samples = counted(self.micro_batch, "sample", "samples");
        parts.push(match micro_batches {
            1 => format!("{samples} at once"),
            n => format!("{samples} at a time ({n} micro-batches)"),
        });
        if self.stages > 1 && self.stream == LayerResidence::Resident {
            parts.push(match self.order {
                Order::Gpipe => "all micro-batches forward, then all backward (GPipe)".into(),
                Order::Alternating => "stages take forward and backward in turns (1F1B)".into(),
                Order::Interleaved(pieces) => {
                    format!("forward and backward in turns, {pieces} pieces of the model on every stage (interleaved 1F1B)")
                }
            });
        }
        let sharded = [
            "",
            "optimizer states divided among the copies (ZeRO stage 1)",
            "optimizer states and gradients divided among the copies (ZeRO stage 2)",
            "weights, gradients and optimizer states divided among the copies (ZeRO stage 3)",
        ];
        parts.extend(sharded.get(self.shard as usize).filter(|_| self.shard > 0).map(|s| s.to_string()));
        parts.extend(match self.recompute {
            Recompute::Nothing => None,
            Recompute::Selective => Some("attention scores recomputed in the backward pass".to_string()),
            Recompute::Full => Some("every layer recomputed in the backward pass".to_string()),
            Recompute::Planned => Some("as few layers recomputed as memory demands".to_string()),
        });
        if self.offload {
            parts.push("optimizer states in host memory".into());
        }
        parts.join("; ")
    }

    fn who_does_what(&self) -> String {
        let shared = match self.cut {
            _ if self.ways == 1 => None,
            Cut::Whole => None,
            Cut::Spatial => Some("each has a part of every image"),
            Cut::Filter => Some("each has some filters of every layer"),
            Cut::Channel => Some("each has some input channels of every layer"),
            Cut::Tensor => Some("each has a part of every layer's matrices"),
            Cut::Sequence => {
                Some("each has a part of every layer's matrices, and of the sequence between them")
            }
            Cut::Mixed => Some("every layer is shared in the way that suits it"),
        };
        let sharers = counted(self.ways, "device", "devices");
        let one = match (self.stages, shared) {
            (1, None) => None,
            (1, Some(how)) => Some(format!("{sharers}: {how}")),
            (stages, None) => Some(format!("a pipeline of {stages} devices")),
            (stages, Some(how)) => Some(format!("a pipeline of {stages} stages of {sharers}: {how}")),
        };
        match (self.data, one) {
            (1, None) => "one device does everything".into(),
            (1, Some(one)) => one,
            (copies, None) => {
                format!("{copies} devices, each with a copy of the model and its share of the batch")
            }
            (copies, Some(one)) => format!("{copies} copies of the model share the batch; each is {one}"),
        }
    }
}

fn counted(count: u32, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

impl fmt::Display for ClusterStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.family())?;
        self.words().iter().try_for_each(|word| write!(f, " {}", word.text))
    }
}

/// The words in the names of these strategies with their meanings, each once.
pub fn legend(strategies: &[ClusterStrategy]) -> Vec<(&'static str, &'static str)> {
    let families = strategies.iter().flat_map(ClusterStrategy::families);
    let words = strategies.iter().flat_map(ClusterStrategy::words);
    let mut rows = Vec::new();
    for row in families.chain(words.map(|word| (word.example, word.meaning))) {
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use gulliver_plan::devices::strategy::STRATEGIES;

    #[test]
    fn strategies_are_told_in_words() {
        let serial = ClusterStrategy::serial(32);
        assert_eq!(serial.in_words(32), "one device does everything; 32 samples at once");
        let data = ClusterStrategy { data: 4, micro_batch: 1, shard: 2, ..serial };
        assert_eq!(
            data.in_words(8),
            "4 devices, each with a copy of the model and its share of the batch; 1 sample at a time (2 \
             micro-batches); optimizer states and gradients divided among the copies (ZeRO stage 2)"
        );
        let all = ClusterStrategy {
            data: 8,
            ways: 4,
            cut: Cut::Tensor,
            stages: 2,
            order: Order::Interleaved(4),
            micro_batch: 2,
            shard: 1,
            recompute: Recompute::Planned,
            offload: true,
            stream: LayerResidence::Resident,
        };
        let words = all.in_words(64);
        for part in [
            "8 copies of the model share the batch; each is a pipeline of 2 stages of 4 devices",
            "2 samples at a time (4 micro-batches)",
            "4 pieces of the model on every stage",
            "ZeRO stage 1",
            "as few layers recomputed as memory demands",
            "optimizer states in host memory",
        ] {
            assert!(words.contains(part), "no `{part}` in {words}");
        }
        let packs = ClusterStrategy { stages: 4, stream: LayerResidence::Wrapped(52), ..serial };
        assert!(
            packs.in_words(32).starts_with("the model lives in host memory; 52 packs of layers go round 4")
        );
    }

    #[test]
    fn a_legend_has_what_names_have() {
        let serial = ClusterStrategy::serial(32);
        let names = |all: &[ClusterStrategy]| legend(all).into_iter().map(|row| row.0).collect::<Vec<_>>();
        assert_eq!(names(&[serial]), ["alone", "m2"]);
        let data = ClusterStrategy { data: 4, shard: 1, recompute: Recompute::Planned, ..serial };
        assert_eq!(names(&[data, data]), ["data", "m2", "zero-1", "planned"]);
        let mixed = ClusterStrategy { ways: 2, cut: Cut::Spatial, stages: 2, ..data };
        let expected = ["data", "spatial", "pipeline", "d8xt4xp2", "m2", "1f1b", "zero-1", "planned"];
        assert_eq!(names(&[mixed]), expected);
        assert_eq!(names(&[]), [""; 0]);
    }

    /// One table of names for plans and clusters.
    #[test]
    fn names_are_those_of_the_planner() {
        let names: Vec<&str> = STRATEGIES.iter().map(|strategy| strategy.name).collect();
        let serial = ClusterStrategy::serial(8);
        let cuts = [Cut::Spatial, Cut::Filter, Cut::Channel, Cut::Mixed].map(|cut| ClusterStrategy {
            ways: 2,
            cut,
            ..serial
        });
        let resident = cuts.into_iter().chain([
            ClusterStrategy { data: 2, ..serial },
            ClusterStrategy { stages: 2, ..serial },
            ClusterStrategy { stream: LayerResidence::Replicas(2), ..serial },
            ClusterStrategy { stages: 2, stream: LayerResidence::Wrapped(2), ..serial },
            ClusterStrategy { data: 2, ..cuts[0] },
            ClusterStrategy { data: 2, ..cuts[1] },
        ]);
        for strategy in resident {
            assert!(names.contains(&strategy.family().as_str()), "{strategy}");
        }
        for (shard, name) in [(1, "zero-1"), (3, "zero")] {
            let sharded = ClusterStrategy { data: 2, shard, ..serial };
            assert!(sharded.to_string().ends_with(name) && names.contains(&name), "{sharded}");
        }
        for (name, _) in ON_CLUSTERS_ALONE {
            assert!(!names.contains(&name), "{name}");
        }
    }
}
