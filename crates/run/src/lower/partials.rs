//! Kernels of updates that see what every partial has made: their last operand comes once for each.

use super::Lowered;
use crate::lower::call::Call;

/// Rows, one below the other.
pub fn collect() -> Lowered {
    Lowered::plain(|call| {
        let rows: Vec<&[f32]> = (0..call.inputs()).map(|p| call.input(p)).collect();
        let y = call.output::<f32>(0);
        let mut rest = y;
        for row in rows {
            let (own, after) = rest.split_at_mut(row.len());
            own.copy_from_slice(row);
            rest = after;
        }
        Ok(())
    })
}

/// A sum, and what is added to it in order.
pub fn sum_onto() -> Lowered {
    Lowered::plain(|call: &mut Call<'_>| {
        let sum = (!call.in_place(0, 0)).then(|| call.input::<f32>(0));
        let terms: Vec<&[f32]> = (1..call.inputs()).map(|p| call.input(p)).collect();
        let y = call.output::<f32>(0);
        if let Some(sum) = sum {
            y.copy_from_slice(sum);
        }
        for term in terms {
            y.iter_mut().zip(term).for_each(|(y, x)| *y += x);
        }
        Ok(())
    })
}
