//! Ways to divide neighbouring layers into packs: equal in seconds, equal in bytes, or as full as memory allows.

use std::ops::Range;

/// Packs, in order.
pub(crate) type Packs = Vec<Range<usize>>;

/// Layers to divide, and whether some of them fit on a device together.
pub(crate) struct Packer<'a> {
    pub(crate) layers: Range<usize>,
    pub(crate) fits: &'a dyn Fn(&Range<usize>) -> bool,
}

impl Packer<'_> {
    /// Each pack as large as fits, from the first layer. None if some layer does not fit alone.
    pub(crate) fn greedy(&self) -> Option<Packs> {
        let (mut packs, mut start) = (Vec::new(), self.layers.start);
        while start < self.layers.end {
            let mut end = start + 1;
            if !(self.fits)(&(start..end)) {
                return None;
            }
            while end < self.layers.end && (self.fits)(&(start..end + 1)) {
                end += 1;
            }
            packs.push(start..end);
            start = end;
        }
        Some(packs)
    }

    /// The same from the last layer, so that the last pack is full.
    pub(crate) fn greedy_from_last(&self) -> Option<Packs> {
        self.filled_from_last(|_| true)
    }

    /// `count` packs of about equal amounts. None if one does not fit, or there are fewer layers.
    pub(crate) fn balanced(&self, count: usize, amount: &dyn Fn(usize) -> f64) -> Option<Packs> {
        if count == 0 || self.layers.len() < count {
            return None;
        }
        let mut sums = vec![0.0];
        for layer in self.layers.clone() {
            sums.push(sums[sums.len() - 1] + amount(layer));
        }
        let total = sums[sums.len() - 1];
        let (mut packs, mut start) = (Vec::with_capacity(count), 0);
        for i in 1..=count {
            let want = total * i as f64 / count as f64;
            let after = sums.partition_point(|sum| *sum < want);
            let nearest = match after {
                0 => 0,
                _ if after >= sums.len() => sums.len() - 1,
                _ if want - sums[after - 1] < sums[after] - want => after - 1,
                _ => after,
            };
            let end = if i == count { self.layers.len() } else { nearest };
            let end = end.clamp(start + 1, self.layers.len() - (count - i));
            packs.push(self.layers.start + start..self.layers.start + end);
            start = end;
        }
        packs.iter().all(self.fits).then_some(packs)
    }

    /// At most `count` packs whose largest amount is least. None if they do not fit.
    pub(crate) fn bottleneck(&self, count: usize, amount: &dyn Fn(&Range<usize>) -> f64) -> Option<Packs> {
        let all = amount(&self.layers);
        let single = self.layers.clone().map(|l| amount(&(l..l + 1))).fold(0.0, f64::max);
        let (mut low, mut high) = (single.max(all / count as f64), all);
        let within =
            |limit: f64| self.filled_from_last(|pack| amount(pack) <= limit).filter(|p| p.len() <= count);
        let mut best = within(high)?;
        for _ in 0..12 {
            let limit = (low + high) / 2.0;
            match within(limit) {
                Some(packs) => (best, high) = (packs, limit),
                None => low = limit,
            }
        }
        Some(best)
    }

    fn filled_from_last(&self, within: impl Fn(&Range<usize>) -> bool) -> Option<Packs> {
        let (mut packs, mut end) = (Vec::new(), self.layers.end);
        while end > self.layers.start {
            let mut start = end - 1;
            if !(self.fits)(&(start..end)) {
                return None;
            }
            while start > self.layers.start && within(&(start - 1..end)) && (self.fits)(&(start - 1..end)) {
                start -= 1;
            }
            packs.push(start..end);
            end = start;
        }
        packs.reverse();
        Some(packs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_are_full_or_equal() {
        let amounts = [1.0, 1.0, 4.0, 1.0, 1.0, 2.0, 2.0];
        let sum = |pack: &Range<usize>| amounts[pack.clone()].iter().sum::<f64>();
        let fits = |pack: &Range<usize>| sum(pack) <= 5.0;
        let packer = Packer { layers: 0..7, fits: &fits };
        let ends = |packs: Option<Packs>| packs.map(|p| p.iter().map(|r| r.end).collect::<Vec<_>>());
        assert_eq!(ends(packer.greedy()), Some(vec![2, 4, 7]));
        assert_eq!(ends(packer.greedy_from_last()), Some(vec![2, 4, 7]));
        assert_eq!(ends(packer.balanced(4, &|l| amounts[l])), Some(vec![2, 3, 6, 7]));
        assert_eq!(ends(packer.balanced(3, &|l| amounts[l])), None);
        assert_eq!(ends(packer.balanced(8, &|l| amounts[l])), None);
        let best = packer.bottleneck(4, &sum).unwrap();
        assert_eq!(best.iter().map(sum).fold(0.0, f64::max), 4.0);
        assert_eq!(packer.bottleneck(2, &sum), None);
        assert_eq!(Packer { layers: 2..3, fits: &|_| false }.greedy(), None);
    }
}
