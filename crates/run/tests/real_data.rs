//! Real data, if `test.sh` could install it: Fashion-MNIST from the Debian package.

use gulliver_run::data::{DataOptions, open};
use std::path::Path;

#[test]
fn fashion_mnist_is_read_whole() {
    let path = Path::new("/usr/share/datasets/fashion-mnist");
    if !path.exists() {
        eprintln!("skipped: {} is not installed", path.display());
        return;
    }
    let options = DataOptions { kind: "idx".into(), path: Some(path.into()), ..DataOptions::default() };
    let (train, validation) = open(&options).unwrap();
    let info = train.info();
    assert_eq!((train.len(), info.classes, info.shape), (60_000, Some(10), vec![1, 28, 28]));
    assert!((info.mean[0] - 0.2860).abs() < 1e-3 && (info.std[0] - 0.3530).abs() < 1e-3);
    assert_eq!(validation.unwrap().len(), 10_000);
    let batch = train.batch(&[0, 59_999]).unwrap();
    assert_eq!(batch.get("x").unwrap().shape(), [2, 1, 28, 28]);
    assert!(batch.get("y").unwrap().as_i64().unwrap().iter().all(|y| (0..10).contains(y)));
}
