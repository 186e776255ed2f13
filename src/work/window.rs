//! What was seen lately, in bounded memory: the median of the last requests, sums over the last minute.

use std::collections::VecDeque;

/// The median of the last values. Exact; adding costs two binary searches and a short move of memory.
#[derive(Debug)]
pub struct MedianWindow {
    most: usize,
    in_order_of_arrival: VecDeque<u64>,
    sorted: Vec<u64>,
}

impl MedianWindow {
    /// A window of at most so many values, at least one.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most: most.max(1), in_order_of_arrival: VecDeque::new(), sorted: Vec::new() }
    }

    /// Adds a value; the oldest leaves when there are too many.
    pub fn add(&mut self, value: u64) {
        let place = self.sorted.partition_point(|&other| other < value);
        let oldest = if self.sorted.len() == self.most { self.in_order_of_arrival.pop_front() } else { None };
        self.in_order_of_arrival.push_back(value);
        let Some(oldest) = oldest else { return self.sorted.insert(place, value) };
        // The oldest one's place is taken by what stands between it and the new one's.
        let left = self.sorted.partition_point(|&other| other < oldest);
        if left < place {
            self.sorted.copy_within(left + 1..place, left);
            self.sorted[place - 1] = value;
        } else {
            self.sorted.copy_within(place..left, place + 1);
            self.sorted[place] = value;
        }
    }

    /// How many values there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// The median, of two middle ones the lower; `None` without values.
    #[must_use]
    pub fn median(&self) -> Option<u64> {
        self.sorted.get(self.sorted.len().saturating_sub(1) / 2).copied()
    }
}

/// Seconds that a [`MinuteSums`] looks back.
const MINUTE_S: f64 = 60.0;

/// One slot a second.
const SLOTS: usize = 60;

/// Sums of work over the last 60 seconds, of all requests and of the long ones, in nanoseconds.
#[derive(Debug)]
pub struct MinuteSums {
    slots: [Work; SLOTS],
    /// The sum of all slots.
    sum: Work,
    /// The second that is being filled, counted from time 0.
    second: u64,
    /// When the first work came.
    began_s: Option<f64>,
}

/// Amounts of work, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Of all requests.
    pub all_ns: u64,
    /// Of the long ones.
    pub long_ns: u64,
    /// Prefill alone, of the long ones.
    pub long_prefill_ns: u64,
}

impl Work {
    fn add(&mut self, other: Self) {
        self.all_ns += other.all_ns;
        self.long_ns += other.long_ns;
        self.long_prefill_ns += other.long_prefill_ns;
    }

    fn take(&mut self, other: Self) {
        self.all_ns -= other.all_ns;
        self.long_ns -= other.long_ns;
        self.long_prefill_ns -= other.long_prefill_ns;
    }
}

impl Default for MinuteSums {
    fn default() -> Self {
        Self { slots: [Work::default(); SLOTS], sum: Work::default(), second: 0, began_s: None }
    }
}

impl MinuteSums {
    /// Adds work that came now.
    pub fn add(&mut self, work: Work, now_s: f64) {
        self.pass(now_s);
        self.began_s.get_or_insert(now_s);
        self.slots[slot_of(self.second)].add(work);
        self.sum.add(work);
    }

    /// Lets time go by.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time since an epoch, at least 0")]
    pub fn pass(&mut self, now_s: f64) {
        let second = now_s.max(0.0) as u64;
        if second >= self.second.saturating_add(SLOTS as u64) {
            self.slots = [Work::default(); SLOTS];
            self.sum = Work::default();
            self.second = second;
        }
        while self.second < second {
            self.second += 1;
            let left = std::mem::take(&mut self.slots[slot_of(self.second)]);
            self.sum.take(left);
        }
    }

    /// What came in the last 60 seconds.
    #[must_use]
    pub fn sum(&self) -> Work {
        self.sum
    }

    /// Over how many seconds that is: fewer at the beginning.
    #[must_use]
    pub fn span_s(&self, now_s: f64) -> f64 {
        self.began_s.map_or(MINUTE_S, |began_s| (now_s - began_s).clamp(1.0, MINUTE_S))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a remainder below 60")]
fn slot_of(second: u64) -> usize {
    (second % SLOTS as u64) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_median_is_that_of_the_last_values(values in prop::collection::vec(0..50_u64, 1..200)) {
            let mut window = MedianWindow::new(30);
            for (index, value) in values.iter().enumerate() {
                window.add(*value);
                let mut last = values[index.saturating_sub(29)..=index].to_vec();
                last.sort_unstable();
                prop_assert_eq!(window.median(), Some(last[(last.len() - 1) / 2]));
            }
        }

        #[test]
        fn sums_are_of_the_last_minute(events in prop::collection::vec((0.0..30.0, 1..1_000_u64), 1..100)) {
            let (mut sums, mut told, mut now_s) = (MinuteSums::default(), Vec::new(), 0.0_f64);
            for (pause_s, amount) in events {
                now_s += pause_s;
                let work = Work { all_ns: amount, long_ns: amount / 2, long_prefill_ns: amount / 3 };
                sums.add(work, now_s);
                told.push((now_s.floor(), work));
                let recent = told.iter().filter(|(second, _)| *second > now_s.floor() - 60.0);
                let mut expected = Work::default();
                recent.for_each(|(_, work)| expected.add(*work));
                prop_assert_eq!(sums.sum(), expected);
            }
            sums.pass(now_s + 61.0);
            prop_assert_eq!(sums.sum(), Work::default());
        }
    }

    #[test]
    fn the_span_grows_to_a_minute() {
        let mut sums = MinuteSums::default();
        sums.add(Work::default(), 10.0);
        assert_eq!([10.2, 30.0, 500.0].map(|now_s| sums.span_s(now_s)), [1.0, 20.0, 60.0]);
    }

    #[test]
    fn there_is_no_median_of_nothing() {
        assert_eq!(MedianWindow::new(5).median(), None);
    }
}
