//! Strategies in plain words: a sentence for one, and a legend of the short names that tables use.

use crate::bottleneck::Bottleneck;
use crate::strategy::{Cut, Order, Recompute, Strategy, Stream};

impl Strategy {
    /// What the devices do, in plain words; `batch` is the samples of a step.
    pub fn in_words(&self, batch: u32) -> String {
        let mut parts = Vec::new();
        match self.stream {
            Stream::Resident => parts.push(self.who_does_what()),
            Stream::Paged => parts.push(format!(
                "{} whose memory is virtual: pages come from host memory whenever they are touched",
                counted(self.data, "device", "devices")
            )),
            Stream::Replicas(packs) => parts.push(format!(
                "{}, each with its share of the batch; the model lives in host memory and comes to every device \
                 in {packs} packs of layers, one after the other",
                counted(self.data, "device", "devices")
            )),
            Stream::Wrapped(packs) => parts.push(format!(
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
        if self.stages > 1 && self.stream == Stream::Resident {
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

/// Short names, and whether a strategy's name has them.
type Row = (&'static str, &'static str, fn(&Strategy) -> bool);

#[rustfmt::skip]
const LEGEND: &[Row] = &[
    ("serial", "one device does everything", |s| s.family() == "serial"),
    ("data", "every device, or group of them, has a copy of the model and a share of the batch", |s| has(s, "data")),
    ("tensor", "devices share the matrices of every layer", |s| has(s, "tensor")),
    ("sequence", "devices share the matrices of every layer, and the sequence between them", |s| has(s, "sequence")),
    ("spatial", "devices share every image", |s| has(s, "spatial")),
    ("filter", "devices share the filters of every layer", |s| has(s, "filter")),
    ("channel", "devices share the input channels of every layer", |s| has(s, "channel")),
    ("cut", "devices share every layer in the way that suits it", |s| has(s, "cut")),
    ("pipeline", "layers are on stages, one after the other", |s| has(s, "pipeline")),
    ("harmony-dp", "the model is in host memory; every device has all its layers in turn", |s| has(s, "harmony-dp")),
    ("harmony-pp", "the model is in host memory; its layers go round the devices", |s| has(s, "harmony-pp")),
    ("paged", "virtual memory of each device", |s| has(s, "paged")),
    ("d8xt4xp2", "8 copies of the model, each on 4 devices that share layers x 2 pipeline stages", |s| name_has(s, "x")),
    ("m2", "a micro-batch of 2 samples: that many pass through the model at a time", |_| true),
    ("gpipe", "pipeline schedule: all forward, then all backward", |s| name_has(s, " gpipe")),
    ("1f1b", "pipeline schedule: one forward, one backward", |s| name_has(s, " 1f1b")),
    ("interleaved4", "pipeline schedule: one forward, one backward, with 4 pieces of the model on every stage", |s| name_has(s, " interleaved")),
    ("zero1", "optimizer states are divided among the copies", |s| name_has(s, " zero1")),
    ("zero2", "optimizer states and gradients are divided among the copies", |s| name_has(s, " zero2")),
    ("zero3", "weights, gradients and optimizer states are divided among the copies", |s| name_has(s, " zero3")),
    ("selective", "attention scores are recomputed in the backward pass", |s| name_has(s, " selective")),
    ("recompute", "every layer is recomputed in the backward pass", |s| name_has(s, " recompute")),
    ("planned", "as few layers are recomputed as memory demands", |s| name_has(s, " planned")),
    ("packs52", "layers come from host memory in 52 packs", |s| name_has(s, " packs")),
    ("offload", "optimizer states are in host memory", |s| name_has(s, " offload")),
];

fn has(strategy: &Strategy, family: &str) -> bool {
    strategy.family().split('+').any(|part| part == family)
}

fn name_has(strategy: &Strategy, part: &str) -> bool {
    let name = strategy.to_string();
    let after = &name[strategy.family().len()..];
    match part {
        // Extents are the first word: `d8xt4xp2`.
        "x" => after.trim_start().split(' ').next().is_some_and(|word| word.contains('x')),
        part => after.contains(part),
    }
}

/// What the short names in the names of these strategies mean, each once.
pub fn legend(strategies: &[Strategy]) -> Vec<(&'static str, &'static str)> {
    let used = |row: &&Row| strategies.iter().any(row.2);
    LEGEND.iter().filter(used).map(|(name, words, _)| (*name, *words)).collect()
}

/// What a bottleneck means, where its own words do not say.
pub fn explained(bottleneck: Bottleneck) -> Option<(&'static str, &'static str)> {
    let words = match bottleneck {
        Bottleneck::Compute => "devices compute nearly all the time",
        Bottleneck::GradientExchange => "copies of the model wait for each other's gradients",
        Bottleneck::LayerCollectives => "devices that share layers wait for each other's results",
        Bottleneck::Messages => "stages wait for what others send them",
        Bottleneck::WeightUpdate => "the optimizer's passes over weights and states",
        Bottleneck::Swap => "layers or states do not come from host memory fast enough",
        _ => return None,
    };
    Some((bottleneck.words(), words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_are_told_in_words() {
        let serial = Strategy::serial(32);
        assert_eq!(serial.in_words(32), "one device does everything; 32 samples at once");
        let data = Strategy { data: 4, micro_batch: 1, shard: 2, ..serial };
        assert_eq!(
            data.in_words(8),
            "4 devices, each with a copy of the model and its share of the batch; 1 sample at a time (2 \
             micro-batches); optimizer states and gradients divided among the copies (ZeRO stage 2)"
        );
        let all = Strategy {
            data: 8,
            ways: 4,
            cut: Cut::Tensor,
            stages: 2,
            order: Order::Interleaved(4),
            micro_batch: 2,
            shard: 1,
            recompute: Recompute::Planned,
            offload: true,
            stream: Stream::Resident,
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
        let packs = Strategy { stages: 4, stream: Stream::Wrapped(52), ..serial };
        assert!(
            packs.in_words(32).starts_with("the model lives in host memory; 52 packs of layers go round 4")
        );
    }

    #[test]
    fn a_legend_has_what_names_have() {
        let serial = Strategy::serial(32);
        let names = |all: &[Strategy]| legend(all).into_iter().map(|row| row.0).collect::<Vec<_>>();
        assert_eq!(names(&[serial]), ["serial", "m2"]);
        let data = Strategy { data: 4, shard: 1, recompute: Recompute::Planned, ..serial };
        assert_eq!(names(&[data, data]), ["data", "m2", "zero1", "planned"]);
        let mixed = Strategy { ways: 2, cut: Cut::Spatial, stages: 2, ..data };
        let expected = ["data", "spatial", "pipeline", "d8xt4xp2", "m2", "1f1b", "zero1", "planned"];
        assert_eq!(names(&[mixed]), expected);
        assert_eq!(names(&[]), [""; 0]);
    }
}
