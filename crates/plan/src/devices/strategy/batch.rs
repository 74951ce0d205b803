//! Strategies that divide the batch: every device takes partials of its own.

use super::DeviceSet;
use crate::devices::error::JobPlanError;
use crate::devices::options::DeviceOptions;
use crate::document::job::{Rank, WorkSharing};
use crate::step::outline::slice_of;

/// The options of each device: its rank, its partials and its share of the largest batch.
pub(super) fn shares(set: &DeviceSet, sharing: WorkSharing) -> Result<Vec<DeviceOptions>, JobPlanError> {
    let ranks = set.devices.len() as u32;
    let share = |(rank, options): (u32, &DeviceOptions)| {
        let mut options = options.clone();
        if options.partials == 0 || !options.partials.is_multiple_of(ranks) {
            return Err(JobPlanError::Partials { partials: options.partials, devices: ranks });
        }
        options.partials /= ranks;
        options.largest = options.largest.map(|largest| slice_of(&largest, ranks)).transpose()?;
        options.rank = Some(Rank { rank, ranks, sharing });
        Ok(options)
    };
    (0..ranks).zip(&set.devices).map(share).collect()
}
