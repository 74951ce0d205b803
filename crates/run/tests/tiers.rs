//! Weights and states that reside on the host or on disk and are moved by streams beside the computation: training gives
//! the same bits, the bytes moved are those of the plan, and disk faults are errors.

mod direct;

use direct::Direct;
use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{Graph, Node, Role};
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::random::RandomStream;
use gulliver_graph::training::training_graph;
use gulliver_plan::budget::planner::StepPlanner;
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::{
    Act, Buffer, BufferId, BufferRange, Plan, PlanStream, Step, TIERS, Tier,
};
use gulliver_plan::document::residence::{Persistent, Residence};
use gulliver_plan::document::topology::{BoxWiring, DeviceSpec, Topology};
use gulliver_plan::document::verify::verify;
use gulliver_plan::step::options::PlanOptions;
use gulliver_run::device::Device as _;
use gulliver_run::device::RunError;
use gulliver_run::device::cpu::disk::{BLOCK, DiskError};
use gulliver_run::device::cpu::{Cpu, CpuOptions};
use gulliver_run::host::initial::pieces;
use gulliver_run::lower::{Kernels, lower_node};
use gulliver_run::peers::link::Throttle;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const THREADS: usize = 2;
const BATCH: usize = 4;
const LENGTH: usize = 6;
const STEPS: i64 = 3;

const MODELS: [(&str, &[(&str, i64)]); 3] = [
    ("mlp-tiny", &[]),
    ("gpt", &[("width", 16), ("heads", 2), ("layers", 2)]),
    ("resnet18", &[("width", 4), ("size", 16)]),
];

fn graph((name, params): (&str, &[(&str, i64)])) -> Graph {
    let params: Vec<_> = params.iter().map(|(n, v)| (n.to_string(), ParamValue::Int(*v))).collect();
    let optimizer = Optimizer::new("adamw", &[]).unwrap();
    training_graph(model(name, &params).unwrap().as_ref(), &[optimizer], None).unwrap()
}

fn sizes() -> Bindings {
    Bindings::new().with("batch", BATCH).with("length", LENGTH)
}

/// A plan with all persistent values on the device.
fn resident(graph: &Graph) -> (Plan, Persistent) {
    let persistent = Persistent::of(graph).unwrap();
    let scratch =
        |g: &Graph, n: &Node, s: &Bindings| Ok(lower_node(g, n, s, THREADS, &Kernels::default())?.scratch);
    let options = PlanOptions { scratch: &scratch, ..PlanOptions::new(&persistent) };
    let planner = StepPlanner::new(graph, &sizes(), &options).unwrap();
    let plan = planner.plan(graph, &sizes(), &options).unwrap();
    (plan, persistent)
}

fn touched(act: &Act) -> Vec<BufferId> {
    let places: Vec<&BufferRange> = match act {
        Act::Alloc(_) | Act::Free(_) => vec![],
        Act::Run { ins, outs, scratch, .. } => ins.iter().chain(outs).chain(scratch).collect(),
        Act::Exchange { own, result, .. } => own.iter().chain([result]).collect(),
        Act::Copy { from, to } | Act::Move { from, to } => vec![from, to],
        Act::Add { from, into } => vec![from, into],
    };
    places.into_iter().map(|p| p.buffer).collect()
}

/// The same plan with other residences: each value is moved to the device at the start, in the order of first use, and
/// back right after its last use.
fn away(graph: &Graph, plan: &Plan, residences: &mut Persistent, tier: impl Fn(usize) -> Tier) -> Plan {
    let mut new = plan.clone();
    let mut ends = [0u64; TIERS.len()];
    let mut moving: Vec<(BufferId, BufferId)> = Vec::new();
    for (i, input) in new.inputs.iter_mut().filter(|i| i.persistent).enumerate() {
        let tier = tier(i);
        if tier == Tier::Device {
            continue;
        }
        let offset = ends[tier as usize];
        let bytes = input.place.bytes;
        ends[tier as usize] += bytes.next_multiple_of(BLOCK);
        residences
            .residences
            .insert(graph.value(input.value).name.clone(), Residence { tier, offset, bytes });
        let residence = BufferId(new.buffers.len() as u32);
        new.buffers.push(Buffer { space: tier as u32, offset, bytes, value: Some(input.value) });
        moving.push((input.place.buffer, residence));
        input.place.buffer = residence;
    }
    let uses = |b: BufferId| {
        let uses = (0..plan.steps.len()).filter(move |&s| touched(&plan.steps[s].act).contains(&b));
        (uses.clone().next(), uses.max())
    };
    let mut used: Vec<_> = moving.into_iter().map(|(d, h)| (uses(d), d, h)).collect();
    used.sort_by_key(|((first, _), ..)| first.unwrap_or(usize::MAX));

    let whole = |b: BufferId| BufferRange { buffer: b, start: 0, bytes: new.buffers[b.0 as usize].bytes };
    let inputs = plan.steps.iter().take_while(|s| matches!(s.act, Act::Alloc(_))).count();
    let mut steps: Vec<Step> = plan.steps[..inputs].to_vec();
    steps.extend(used.iter().map(|(_, _, residence)| Step::from(Act::Alloc(*residence))));
    let mut moved_in = Vec::new();
    for (_, device, residence) in &used {
        moved_in.push(steps.len() as u32);
        steps.push(Act::Move { from: whole(*residence), to: whole(*device) }.into());
    }
    for (s, step) in plan.steps.iter().enumerate().skip(inputs) {
        let first_used = used.iter().zip(&moved_in).filter(|(((first, _), ..), _)| *first == Some(s));
        let after: Vec<u32> = first_used.map(|(_, at)| *at).collect();
        let at = steps.len() as u32;
        steps.push(Step { act: step.act.clone(), after });
        for (_, device, residence) in used.iter().filter(|((_, last), ..)| *last == Some(s)) {
            let back = Act::Move { from: whole(*device), to: whole(*residence) };
            steps.push(Step { act: back, after: vec![at] });
        }
    }
    new.steps = steps;
    for tier in [Tier::Host, Tier::Disk] {
        new.spaces[tier as usize].bytes = ends[tier as usize];
    }
    for (space, live) in new.live_peaks().into_iter().enumerate() {
        new.spaces[space].live = live;
    }
    verify(graph, &new).unwrap();
    new
}

struct Trainer<'a> {
    graph: &'a Graph,
    direct: Direct,
    residences: &'a Persistent,
    /// Upper bound of tokens and labels.
    below: u64,
}

impl<'a> Trainer<'a> {
    fn new(graph: &'a Graph, plan: &Plan, residences: &'a Persistent, options: CpuOptions) -> Trainer<'a> {
        let mut direct = Direct::new(Cpu::new(options).unwrap(), graph, plan);
        for (_, role, info) in graph.inputs() {
            if let Role::Weight(init) | Role::State(init) = role {
                let Residence { tier, offset, bytes } = residences.residences[&info.name];
                pieces(5, &info.name, init, bytes as usize / 4, |first, piece| {
                    direct.write_floats(tier, offset + 4 * first as u64, piece);
                });
            }
        }
        Trainer { graph, direct, residences, below: 10 }
    }

    fn step(&mut self, step: i64, ranges: usize) -> Result<(), RunError> {
        for (value, role, info) in self.graph.inputs() {
            let random = RandomStream::new(9, u64::from(value.0), step as u64);
            let bytes: Vec<u8> = match role {
                Role::Weight(_) | Role::State(_) => continue,
                Role::Hyper(_, default) => default.to_le_bytes().to_vec(),
                Role::Random => [3, step, 0].into_iter().flat_map(i64::to_le_bytes).collect(),
                Role::Data(_) => {
                    let count: usize = info.ty.bind(&sizes()).unwrap().iter().product();
                    let all = 0..count as u64;
                    match info.ty.dtype {
                        DType::F32 => all.flat_map(|i| random.normal_at(i).to_le_bytes()).collect(),
                        _ => all.flat_map(|i| (random.below(i, self.below) as i64).to_le_bytes()).collect(),
                    }
                }
            };
            self.direct.feed(value, &bytes)?;
        }
        let steps = self.direct.plan.steps.len();
        let cut = |part: usize| steps * part / ranges;
        for part in 0..ranges {
            self.direct.run(cut(part)..cut(part + 1))?;
        }
        Ok(())
    }

    /// All weights, states and outputs.
    fn results(&self) -> Vec<Vec<u8>> {
        let persistent =
            self.graph.inputs().filter_map(|(_, _, info)| self.residences.residences.get(&info.name));
        let mut all: Vec<Vec<u8>> = Vec::new();
        for residence in persistent {
            let mut bytes = vec![0; residence.bytes as usize];
            self.direct.device.read(residence.tier, residence.offset, &mut bytes).unwrap();
            all.push(bytes);
        }
        for name in self.direct.output_names() {
            all.push(self.direct.output(&name).unwrap().as_bytes().to_vec());
        }
        all
    }
}

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("gulliver-tiers-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn options(dir: &Path, link: Option<f64>) -> CpuOptions {
    let throttle = |rate| {
        let wiring = BoxWiring { host: Some(rate), ..BoxWiring::default() };
        let topology = Topology::wired(vec![DeviceSpec::default()], &wiring).unwrap();
        Arc::new(Throttle::new(topology))
    };
    CpuOptions {
        threads: THREADS,
        disk_dir: Some(dir.to_path_buf()),
        throttle: link.map(throttle),
        ..CpuOptions::default()
    }
}

/// Bytes that a plan moves in one step.
fn planned(plan: &Plan) -> Ledger {
    let mut ledger = Ledger::default();
    for step in &plan.steps {
        let Act::Move { from, .. } = &step.act else { continue };
        match plan.stream(&step.act) {
            Some(PlanStream::In) => ledger.to_device += from.bytes,
            Some(PlanStream::Out) => ledger.to_host += from.bytes,
            Some(PlanStream::Read) => ledger.disk_read += from.bytes,
            Some(PlanStream::Write) => ledger.disk_written += from.bytes,
            _ => panic!("a move in no stream"),
        }
    }
    ledger
}

type Homes = fn(usize) -> Tier;

#[test]
fn where_weights_live_changes_no_bit() {
    let dir = Dir::new("bits");
    let schemes: [(&str, Homes); 3] =
        [("host", |_| Tier::Host), ("disk", |_| Tier::Disk), ("mixed", |i| TIERS[i % 3])];
    for model in MODELS {
        let graph = graph(model);
        let (plan, residences) = resident(&graph);
        let mut plain = Trainer::new(&graph, &plan, &residences, options(&dir.0, None));
        (0..STEPS).for_each(|s| plain.step(s, 1).unwrap());
        let expected = plain.results();
        assert_eq!(plain.direct.device.moved(), Ledger::default());
        for (scheme, tier) in schemes {
            let mut residences = residences.clone();
            let plan = away(&graph, &plan, &mut residences, tier);
            for (link, ranges) in [(None, 1), (None, 3), (Some(1e9), 1)] {
                let case = format!("{} {scheme}, link {link:?}, {ranges} ranges", model.0);
                let mut trainer = Trainer::new(&graph, &plan, &residences, options(&dir.0, link));
                let mut total = Ledger::default();
                for s in 0..STEPS {
                    trainer.step(s, ranges).unwrap();
                    total += planned(&plan);
                }
                assert!(trainer.results() == expected, "{case}");
                assert_eq!(trainer.direct.device.moved(), total, "{case}");
                for tier in TIERS {
                    assert_eq!(
                        trainer.direct.device.peaks()[tier as usize],
                        plan.spaces[tier as usize].live,
                        "{case}"
                    );
                }
            }
        }
    }
    assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 0, "files of the disk tier have no names");
}

#[test]
fn plans_that_do_not_fit_are_refused() {
    let dir = Dir::new("refused");
    let graph = graph(MODELS[0]);
    let (plan, mut residences) = resident(&graph);
    let mut plan = away(&graph, &plan, &mut residences, |i| TIERS[i % 3]);
    let mut cpu = Cpu::new(options(&dir.0, None)).unwrap();
    for tier in TIERS {
        let refused = cpu.load(&Arc::new(graph.clone()), &Arc::new(plan.clone())).err();
        let Some(RunError::Space { tier: full, needed, available: 0 }) = refused else { panic!("{tier:?}") };
        let expected = &plan.spaces[tier as usize];
        assert_eq!((full, needed), (tier, expected.bytes));
        cpu.grow(tier, expected.bytes).unwrap();
    }
    assert!(cpu.load(&Arc::new(graph.clone()), &Arc::new(plan.clone())).is_ok());
    let on_disk = plan.buffers.iter_mut().find(|b| b.space == Tier::Disk as u32).unwrap();
    on_disk.offset += 64;
    let refused = cpu.load(&Arc::new(graph.clone()), &Arc::new(plan.clone())).err();
    assert!(matches!(refused, Some(RunError::Unaligned { .. })), "{refused:?}");
}

#[test]
fn a_kernel_that_fails_stops_the_streams_and_changes_nothing() {
    let dir = Dir::new("kernel");
    let graph = graph(MODELS[1]);
    let (plan, mut residences) = resident(&graph);
    let plan = away(&graph, &plan, &mut residences, |i| [Tier::Host, Tier::Disk][i % 2]);
    let run = |failures: usize| {
        let mut trainer = Trainer::new(&graph, &plan, &residences, options(&dir.0, Some(1e9)));
        for s in 0..STEPS {
            for _ in 0..failures {
                trainer.below = 1 << 40;
                assert!(matches!(trainer.step(s, 1), Err(RunError::Kernel { .. })));
            }
            trainer.below = 10;
            trainer.step(s, 1).unwrap();
        }
        trainer.results()
    };
    assert!(run(0) == run(2));
}

/// Opens the unnamed file of a disk tier, as another process could.
#[cfg(target_os = "linux")]
fn file_in(dir: &Path) -> std::fs::File {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let ours = |fd: &PathBuf| std::fs::read_link(fd).is_ok_and(|target| target.starts_with(dir));
    let fd = open.into_iter().find(ours).expect("the file is open");
    std::fs::OpenOptions::new().write(true).open(fd).unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn faults_of_the_disk_end_the_run() {
    use std::os::unix::fs::FileExt;
    let dir = Dir::new("faults");
    let graph = graph(MODELS[1]);
    let (plan, mut residences) = resident(&graph);
    let plan = away(&graph, &plan, &mut residences, |i| [Tier::Host, Tier::Disk][i % 2]);
    type Fault = fn(&std::fs::File);
    let faults: [(&str, Fault); 2] = [
        ("damaged", |file| file.write_all_at(&[0xa5; 64], 5 * BLOCK).unwrap()),
        ("shorter", |file| file.set_len(5 * BLOCK).unwrap()),
    ];
    for (name, fault) in faults {
        for link in [None, Some(1e9)] {
            let mut trainer = Trainer::new(&graph, &plan, &residences, options(&dir.0, link));
            trainer.step(0, 1).unwrap();
            fault(&file_in(&dir.0));
            let RunError::Disk(error) = trainer.step(1, 1).unwrap_err() else { panic!("{name}") };
            match &error {
                DiskError::Damaged { path, offset, bytes } if name == "damaged" => {
                    assert!(path.starts_with(&dir.0), "{error}");
                    assert!((*offset..offset + *bytes as u64).contains(&(5 * BLOCK)), "{error}");
                }
                DiskError::Io { what: "read", why, .. } if name == "shorter" => {
                    assert!(why.contains("shorter"), "{error}");
                }
                _ => panic!("{name}: {error}"),
            }
        }
    }
}
