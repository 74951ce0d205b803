//! `lab validate`, end to end, on a small made-up directory of measurements.

use std::path::{Path, PathBuf};
use std::process::Command;

struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> TempDir {
        let path = std::env::temp_dir().join(format!("gulliver-lab-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether it went well, what it printed, and its error.
fn validate(arguments: &[&str]) -> (bool, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_lab")).arg("validate").args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (out.status.success(), text(&out.stdout), text(&out.stderr))
}

fn json(dir: &str) -> serde_json::Value {
    let (well, out, error) = validate(&[dir, "--json"]);
    assert!(well, "{error}");
    serde_json::from_str(&out).unwrap()
}

/// Formats as they are published, with made-up figures.
fn measurements(dir: &TempDir) {
    dir.write(
        "grid.csv",
        "gpus,global_batch,micro_batch,hidden,heads,layers,seq_len,tp,dp,pp,iter_time_ms\n\
         2,8,4,1024,16,24,1024,1,2,1,150\n8,16,4,1024,16,24,1024,1,4,2,160\n8,16,1,1024,16,24,1024,8,1,1,1900\n",
    );
    dir.write(
        "memory.csv",
        "model,gpu,nodes,gpus,tp,pp,dp,micro_batch,global_batch,seq_len,act_ckpt,optimizer,sec_per_iter,gpu_mem_gb,status\n\
         1.3B,V100-32GB,2,8,1,1,8,1,512,2048,ckpt,adam,29,16,ok\n\
         1.3B,V100-16GB,2,8,1,1,8,64,512,2048,no_ckpt,adam,,,OOM\n",
    );
    dir.write("calib.csv", "gpu,num_gpus,bytes,time_ns\na100,8,1073741824,8193000\n");
    dir.write(
        "cnn.csv",
        "strategy,model,gpus,global_batch,iters_per_epoch,median_sec_per_iter\n\
         data,vgg,128,4096,313,0.5\ndata,alexnet,8,4096,313,0.6\ndata,resnet,128,8192,157,0.4\n\
         data,resnet,8,512,2503,0.2\ndata+spatial(bigbatch),resnet,8,512,2503,0.9\nmagic,resnet,8,512,2503,1\n",
    );
    dir.write(
        "paradl_own_projections.csv",
        "model,strategy,global_batch,gpus,sec_per_iter\nResNet50,data,512,8,0.4\n",
    );
    dir.write(
        "throughput.csv",
        "framework,model,variant,system,nodes,gpus,batch_per_gpu,accum_steps,seq_len,precision,throughput,unit\n\
         PyTorch,resnet50v1.5,,NVIDIA DGX A100 (8x A100 80GB),,1,,,,mixed,2470,img/s\n\
         PyTorch,resnet50v1.5,,NVIDIA DGX A100 (8x A100 80GB),,8,,,,mixed,19000,img/s\n",
    );
    dir.write(
        "plans.csv",
        "model,minibatch,mode,gpus,rank,est_iter_time_s,max_gpu_mem_mb,u_fwd,n_pack_fwd,u_bwd,n_pack_bwd\n\
         toy,8,vDP,2,1,0.34,1,2,1,2,2\ntoy,8,vPP,2,1,0.4,1,2,1,2,2\ntoy,8,vXX,2,1,0.4,1,2,1,2,2\n",
    );
    dir.write(
        "harmony_layers.csv",
        "model,vlayer,weight_bytes,input_act_bytes_per_sample\ntoy_seqlen8,0,4000,400\ntoy_seqlen8,1,4000,400\n",
    );
    // A forward pass of 0.01 s a sample, and a backward pass that also repeats it.
    dir.write(
        "harmony_layer_profiles.csv",
        "model,kind,microbatch,vlayer,gpu_time_s,gpu_mem_bytes\ntoy_seqlen8,FWD,2,0,0.02,9000\n\
         toy_seqlen8,FWD,2,1,0.02,9000\ntoy_seqlen8,BWD,2,0,0.06,9000\ntoy_seqlen8,BWD,2,1,0.06,9000\n",
    );
    dir.write("other.csv", "a,b\n1,2\n");
}

#[test]
fn validation_scores_every_known_format() {
    let dir = TempDir::new("truth");
    measurements(&dir);
    let path = dir.0.to_str().unwrap();
    let answer = json(path);
    let parts = answer["files"].as_array().unwrap();
    let find = |file: &str, part: &str| {
        let found = parts.iter().find(|p| p["file"] == file && p["part"] == part);
        found.unwrap_or_else(|| panic!("no {part} of {file}"))["score"].clone()
    };
    for (file, part, rows) in [
        ("grid.csv", "calibration", 1),
        ("grid.csv", "test", 2),
        ("memory.csv", "test", 1),
        ("memory.csv", "test, memory", 1),
        ("calib.csv", "calibration", 1),
        ("cnn.csv", "test", 5),
        // Neither a hybrid, nor AlexNet, nor ResNet-50 on 128 devices.
        ("cnn.csv", "test, undoubted", 2),
        ("throughput.csv", "calibration", 1),
        ("throughput.csv", "test", 1),
        ("throughput.csv", "test, one device measured", 1),
        ("plans.csv", "estimates of Harmony", 2),
    ] {
        assert_eq!(find(file, part)["rows"], rows, "{file} {part}");
    }
    let grid = find("grid.csv", "test");
    assert_eq!((grid["tau"].as_f64(), grid["regret"].as_f64()), (Some(1.0), Some(0.0)), "{grid}");
    let memory = find("memory.csv", "test");
    assert_eq!((memory["precision"].as_f64(), memory["recall"].as_f64()), (Some(1.0), Some(1.0)), "{memory}");
    let (theirs, rows) =
        (find("cnn.csv", "test")["peer"][0].as_f64().unwrap(), find("cnn.csv", "test")["peer"][2].clone());
    assert!((theirs - 1.0).abs() < 1e-9 && rows == 1, "0.4 s for 0.2 s");
    // Two layers of four samples on each of two replicas: 4 x 2 x (0.01 + 0.03) s.
    let plans = parts.iter().find(|p| p["file"] == "plans.csv").unwrap();
    let replicas = plans["cases"].as_array().unwrap().iter().find(|c| c["label"].to_string().contains("vDP"));
    let predicted = replicas.unwrap()["predicted"].as_f64().unwrap();
    assert!((predicted / 0.32 - 1.0).abs() < 0.02, "{predicted}");
    let anchored = find("throughput.csv", "test, one device measured")["error"].as_f64().unwrap();
    assert!(anchored < 0.1, "{anchored}");
    let (well, out, error) = validate(&[path]);
    assert!(well, "{error}");
    assert!(out.contains("other.csv: skipped") && out.contains("worst misses"), "{out}");
    assert!(out.contains("1 rows of test say too little"), "{out}");
    std::fs::remove_dir_all(Path::new(path)).unwrap();
    std::fs::create_dir_all(path).unwrap();
    dir.write("other.csv", "a,b\n1,2\n");
    let (well, _, error) = validate(&[path]);
    assert!(!well && error.contains("no file of a known format"), "{error}");
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let (well, _, error) = validate(&["/nowhere/at/all"]);
    assert!(!well && error.starts_with("error: /nowhere/at/all: "), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}
