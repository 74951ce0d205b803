//! What-if questions: `link=2x`, `memory=80GiB`… as changes of a cluster.

use crate::OracleError;
use crate::cluster::Cluster;

const FIELDS: &str = "link, within, between, latency, flops, bandwidth, memory, host, adapters";

/// Changes one figure of a cluster, as `FIELD=FACTORx`, e.g. `link=2x` or `memory=0.5x`.
pub fn change(cluster: &mut Cluster, text: &str) -> Result<(), OracleError> {
    let unknown = |name: &str| OracleError::Unknown {
        what: "what-if",
        name: name.to_string(),
        allowed: format!("FIELD=FACTORx with {FIELDS}"),
    };
    let (field, factor) = text.split_once('=').ok_or_else(|| unknown(text))?;
    let factor: f64 = factor.trim_end_matches(['x', '×']).parse().map_err(|_| unknown(text))?;
    if !(factor.is_finite() && factor > 0.0) {
        return Err(OracleError::Figure { what: format!("factor of `{field}`"), value: factor });
    }
    match field {
        "link" => {
            cluster.within.bandwidth *= factor;
            cluster.between.bandwidth *= factor;
        }
        "within" => cluster.within.bandwidth *= factor,
        "between" => cluster.between.bandwidth *= factor,
        "latency" => {
            for way in cluster.within.protocols.iter_mut().chain(&mut cluster.between.protocols) {
                way.start *= factor;
                way.hop *= factor;
            }
        }
        "flops" => cluster.device.flops.iter_mut().for_each(|flops| *flops *= factor),
        "bandwidth" => cluster.device.bandwidth *= factor,
        "memory" => cluster.device.memory *= factor,
        "host" => cluster.host.bandwidth *= factor,
        "adapters" => cluster.adapters = ((cluster.adapters as f64 * factor).round() as u32).max(1),
        _ => return Err(unknown(field)),
    }
    Ok(())
}
