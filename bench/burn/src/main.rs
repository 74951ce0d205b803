//! Trains one reference workload with burn on the CPU and measures it, as `torch_train.py` does with
//! PyTorch.
//!
//! usage: burn-train WORKLOAD [--threads N] [--seconds S] [--check] [--backend flex|ndarray|cpu]
//!
//! Backends of burn 0.22 for the CPU, samples/s with one thread on a busy two-core machine with AVX2:
//!
//! - `flex`, the default and fastest: mlp 3315, mlp-tiny 239000, gpt-nano 33.7, lstm 25.6, pointnet 14.6.
//! - `ndarray`, deprecated by burn: mlp 2019, mlp-tiny 37200, gpt-nano 26.1, lstm 15.8, pointnet no ten steps
//!   in 100 s.
//! - `cpu` (CubeCL): not measured; its build downloads LLVM from outside the package registry.
//! - candle left burn after 0.21, and `tch` is PyTorch; both are peers by themselves.

mod model;
#[path = "../../peer.rs"]
mod peer;

use std::time::Instant;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, GradientsParams, SgdConfig};
use burn::tensor::{Device, Distribution, Int, Shape, Tensor, TensorData};
use model::{Gpt, LanguageLstm, Mlp, PointNet, ResNet};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const VERSION: &str = "0.22.1";

/// How a workload is trained.
enum Rule {
    /// Learning rate 0.001.
    Adam,
    /// Learning rate 0.01, momentum 0.9.
    Momentum,
}

/// Counts trained numbers; `Module::num_params` also counts the statistics of batch normalisation.
struct Trained(usize);

impl ModuleVisitor for Trained {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        if tensor.is_require_grad() {
            self.0 += tensor.dims().iter().product::<usize>();
        }
    }
}

/// The workload of this name; `None` where there is none.
fn workload(name: &str, device: &Device) -> Option<peer::Training<'static>> {
    use Rule::{Adam, Momentum};
    let mlp = |sizes: &[usize], batch| {
        labelled(Mlp::new(sizes, device), Adam, 10, normal([batch, sizes[0]], device), Mlp::forward)
    };
    let resnet = |model, classes, batch, extent| {
        labelled(model, Momentum, classes, normal([batch, 3, extent, extent], device), ResNet::forward)
    };
    let gpt = |vocabulary: usize, width, heads, layers, context, shape| {
        let model = Gpt::new(vocabulary, width, heads, layers, context, device);
        text(model, Adam, vocabulary as u64, shape, device, Gpt::forward)
    };
    Some(match name {
        "mlp" => mlp(&[784, 1024, 1024, 10], 64),
        "mlp-tiny" => mlp(&[64, 32, 10], 32),
        "resnet18" => resnet(ResNet::eighteen(device), 10, 32, 32),
        "resnet50" => resnet(ResNet::fifty(device), 1000, 4, 224),
        "gpt-nano" => gpt(65, 128, 4, 4, 64, [16, 64]),
        "gpt-mini" => gpt(65, 384, 6, 6, 256, [4, 256]),
        "gpt2" => gpt(50257, 768, 12, 12, 1024, [1, 256]),
        "lstm" => {
            let model = LanguageLstm::new(1000, 512, 2, device);
            text(model, Momentum, 1000, [20, 35], device, LanguageLstm::forward)
        }
        "pointnet" => {
            labelled(PointNet::new(device), Adam, 40, normal([16, 3, 1024], device), PointNet::forward)
        }
        _ => return None,
    })
}

/// A classifier of the samples `x`.
fn labelled<M: Module + 'static, const D: usize>(
    model: M,
    rule: Rule,
    classes: u64,
    x: Tensor<D>,
    forward: fn(&M, Tensor<D>) -> Tensor<2>,
) -> peer::Training<'static> {
    let batch = x.dims()[0];
    let y = labels(batch, classes, 2, &x.device());
    training(model, rule, batch, y, move |model| forward(model, x.clone()))
}

/// A model of the next token.
fn text<M: Module + 'static>(
    model: M,
    rule: Rule,
    vocabulary: u64,
    [batch, length]: [usize; 2],
    device: &Device,
    forward: fn(&M, Tensor<2, Int>) -> Tensor<2>,
) -> peer::Training<'static> {
    let tokens = |seed| labels(batch * length, vocabulary, seed, device);
    let x = tokens(1).reshape([batch, length]);
    training(model, rule, batch, tokens(2), move |model| forward(model, x.clone()))
}

fn normal<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(Shape::from(shape), Distribution::Normal(0.0, 1.0), device)
}

fn labels(count: usize, bound: u64, seed: u64, device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new(peer::labels(count, bound, seed), [count]), device)
}

/// A step of `model` on a fixed batch; `forward` gives the scores of every row of `y`.
fn training<M: Module + 'static>(
    model: M,
    rule: Rule,
    batch: usize,
    y: Tensor<1, Int>,
    forward: impl Fn(&M) -> Tensor<2> + 'static,
) -> peer::Training<'static> {
    let (mut optimizer, rate) = match rule {
        Rule::Adam => (AdamConfig::new().with_epsilon(1e-8).init(), 1e-3),
        Rule::Momentum => {
            let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
            (SgdConfig::new().with_momentum(Some(momentum)).init(), 0.01)
        }
    };
    let cross_entropy = CrossEntropyLossConfig::new().init(&y.device());
    let mut parameters = Trained(0);
    model.visit(&mut parameters);
    let mut trained = Some(model);
    let step = move || {
        let model = trained.take().expect("the model is given back after every step");
        let loss = cross_entropy.forward(forward(&model), y.clone());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        trained = Some(optimizer.step(rate, model, gradients));
        Ok(loss.into_scalar::<f32>())
    };
    peer::Training { parameters: parameters.0, batch, step: Box::new(step) }
}

/// The device of the backend of this name, the fastest where it is empty.
fn device(backend: &str) -> Result<Device, String> {
    match backend {
        #[cfg(feature = "flex")]
        "" | "flex" => Ok(Device::flex()),
        #[cfg(feature = "ndarray")]
        #[allow(deprecated)]
        "ndarray" => Ok(Device::ndarray()),
        #[cfg(feature = "cpu")]
        "cpu" => Ok(Device::cpu()),
        _ => Err(format!("--backend {backend}: not built in; see the features in Cargo.toml")),
    }
}

fn run(start: Instant) -> Result<(), String> {
    let options = peer::options()?;
    // The number of threads of ndarray's matrix multiply; nothing else runs yet.
    std::env::set_var("MATMUL_NUM_THREADS", options.threads.to_string());
    let pool = rayon::ThreadPoolBuilder::new().num_threads(options.threads);
    pool.build_global().map_err(|error| error.to_string())?;
    let device = device(&options.backend)?.autodiff();
    match workload(&options.workload, &device) {
        Some(training) => peer::measure(&options, VERSION, start, training),
        None => Err(format!("there is no workload {}", options.workload)),
    }
}

fn main() {
    if let Err(error) = run(Instant::now()) {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}
