//! Trains one reference workload with candle on the CPU and measures it, as `torch_train.py` does with
//! PyTorch.
//!
//! usage: candle-train WORKLOAD [--threads N] [--seconds S] [--check]
//!
//! candle's own matrix multiply is used; its `mkl` feature needs Intel's libraries on the machine. The optimizer
//! with momentum is written here, and in `model.rs` what candle's layers cannot differentiate.

mod model;
#[path = "../../peer.rs"]
mod peer;

use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor, Var, D};
use candle_nn::{loss, AdamW, Optimizer, ParamsAdamW, VarBuilder, VarMap};
use model::{gpt, lstm, mlp, pointnet, resnet18, resnet50, Forward};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const VERSION: &str = "0.11.1";

/// Learning rate 0.01, momentum 0.9; candle's own `SGD` has no momentum.
struct Momentum {
    weights: Vec<(Var, Tensor)>,
}

/// How a workload is trained.
enum Rule {
    Adam(AdamW),
    Momentum(Momentum),
}

/// Model, one batch, optimizer.
struct Workload {
    forward: Forward,
    x: Tensor,
    y: Tensor,
    rule: Rule,
    parameters: usize,
}

impl Momentum {
    fn new(weights: Vec<Var>) -> Result<Momentum> {
        let with_velocity = |var: Var| var.zeros_like().map(|zeros| (var, zeros));
        Ok(Momentum { weights: weights.into_iter().map(with_velocity).collect::<Result<_>>()? })
    }

    fn step(&mut self, loss: &Tensor) -> Result<()> {
        let gradients = loss.backward()?;
        for (weight, velocity) in &mut self.weights {
            if let Some(gradient) = gradients.get(weight) {
                *velocity = ((&*velocity * 0.9)? + gradient)?;
                weight.set(&(weight.as_tensor() - (&*velocity * 0.01)?)?)?;
            }
        }
        Ok(())
    }
}

/// The workload of this name; `None` where there is none.
fn workload(name: &str, device: &Device) -> Result<Option<Workload>> {
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, device);
    let (forward, x, classes, adam) = match name {
        "mlp" => (mlp(&[784, 1024, 1024, 10], vb)?, normal(&[64, 784], device)?, 10, true),
        "mlp-tiny" => (mlp(&[64, 32, 10], vb)?, normal(&[32, 64], device)?, 10, true),
        "resnet18" => (resnet18(vb)?, normal(&[32, 3, 32, 32], device)?, 10, false),
        "resnet50" => (resnet50(vb)?, normal(&[4, 3, 224, 224], device)?, 1000, false),
        "gpt-nano" => (gpt(65, 128, 4, 4, 64, 64, vb)?, tokens(65, 16, 64, device)?, 65, true),
        "gpt-mini" => (gpt(65, 384, 6, 6, 256, 256, vb)?, tokens(65, 4, 256, device)?, 65, true),
        "gpt2" => (gpt(50257, 768, 12, 12, 1024, 256, vb)?, tokens(50257, 1, 256, device)?, 50257, true),
        "lstm" => (lstm(1000, 512, 2, vb)?, tokens(1000, 20, 35, device)?, 1000, false),
        "pointnet" => (pointnet(vb)?, normal(&[16, 3, 1024], device)?, 40, true),
        _ => return Ok(None),
    };
    let rows = if x.dtype() == DType::F32 { x.dim(0)? } else { x.elem_count() };
    let y = Tensor::from_vec(peer::labels(rows, classes, 2), rows, device)?;
    // Batch normalisation's statistics are variables too, but not trained.
    let all = map.data().lock().unwrap().clone();
    let trained: Vec<Var> =
        all.into_iter().filter(|(name, _)| !name.contains("running_")).map(|(_, var)| var).collect();
    let parameters = trained.iter().map(|var| var.elem_count()).sum();
    let rule = if adam {
        Rule::Adam(AdamW::new(trained, ParamsAdamW { lr: 1e-3, weight_decay: 0.0, ..Default::default() })?)
    } else {
        Rule::Momentum(Momentum::new(trained)?)
    };
    Ok(Some(Workload { forward, x, y, rule, parameters }))
}

fn normal(shape: &[usize], device: &Device) -> Result<Tensor> {
    Tensor::randn(0f32, 1f32, shape, device)
}

fn tokens(vocabulary: u64, batch: usize, length: usize, device: &Device) -> Result<Tensor> {
    Tensor::from_vec(peer::labels(batch * length, vocabulary, 1), (batch, length), device)
}

impl Workload {
    fn step(&mut self) -> Result<f32> {
        let logits = (self.forward)(&self.x)?;
        let classes = logits.dim(D::Minus1)?;
        let loss = loss::cross_entropy(&logits.reshape(((), classes))?, &self.y)?;
        match &mut self.rule {
            Rule::Adam(adam) => adam.backward_step(&loss)?,
            Rule::Momentum(momentum) => momentum.step(&loss)?,
        }
        loss.to_scalar::<f32>()
    }
}

fn run(start: Instant) -> std::result::Result<(), String> {
    let options = peer::options()?;
    // candle asks the environment how many threads it may use; nothing else runs yet.
    std::env::set_var("RAYON_NUM_THREADS", options.threads.to_string());
    let device = Device::Cpu;
    device.with_context(|| {
        let text = |error: candle_core::Error| error.to_string();
        let Some(mut workload) = workload(&options.workload, &device).map_err(text)? else {
            return Err(format!("there is no workload {}", options.workload));
        };
        let training = peer::Training {
            parameters: workload.parameters,
            batch: workload.x.dim(0).map_err(text)?,
            step: Box::new(move || workload.step().map_err(text)),
        };
        peer::measure(&options, VERSION, start, training)
    })
}

fn main() {
    if let Err(error) = run(Instant::now()) {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}
