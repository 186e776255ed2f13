//! Where a value is drawn, which values are written beside an axis, and how.

/// From values to pixels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    is_log: bool,
    /// Values of both ends, as they are counted (logarithms on a logarithmic scale).
    values: [f64; 2],
    pixels: [f64; 2],
}

/// Values that differ by more than this factor need a logarithmic scale.
const LOG_FROM: f64 = 8.0;

impl Scale {
    pub(super) fn linear(values: [f64; 2], pixels: [f64; 2]) -> Self {
        Self { is_log: false, values, pixels }
    }

    /// For values above 0.
    pub(super) fn log(values: [f64; 2], pixels: [f64; 2]) -> Self {
        Self { is_log: true, values: values.map(f64::log10), pixels }
    }

    /// For times: logarithmic when they differ much, else from 0 on.
    pub(super) fn of_times(times: impl Iterator<Item = f64>, pixels: [f64; 2]) -> Self {
        let times = times.filter(|time| *time > 0.0);
        let (least, most) =
            times.fold((f64::INFINITY, 0.0_f64), |(least, most), time| (least.min(time), most.max(time)));
        if most <= 0.0 {
            Self::linear([0.0, 1.0], pixels)
        } else if most / least > LOG_FROM {
            Self::log([least / 1.15, most * 1.15], pixels)
        } else {
            Self::linear([0.0, most * 1.08], pixels)
        }
    }

    pub(super) fn pixel(&self, value: f64) -> f64 {
        let value = if self.is_log { value.max(1e-9).log10() } else { value };
        let [from, to] = self.values;
        let share = if to > from { (value - from) / (to - from) } else { 0.5 };
        self.pixels[0] + share.clamp(-0.02, 1.02) * (self.pixels[1] - self.pixels[0])
    }

    /// Round values that lie on the scale, about as many as there is room for.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let [from, to] = self.values;
        if self.is_log { log_ticks(from, to) } else { linear_ticks(from, to) }
    }
}

fn log_ticks(from: f64, to: f64) -> Vec<f64> {
    let steps: &[f64] = if to - from < 1.6 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let decades =
        std::iter::successors(Some(from.floor()), |decade| Some(decade + 1.0)).take_while(|decade| *decade <= to);
    let ticks = decades.flat_map(|decade| steps.iter().map(move |step| step * 10.0_f64.powf(decade)));
    ticks.filter(|tick| (from..=to).contains(&tick.log10())).take(24).collect()
}

fn linear_ticks(from: f64, to: f64) -> Vec<f64> {
    let rough = (to - from).max(1e-9) / 5.0;
    let decade = 10.0_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * decade).into_iter().find(|step| *step >= 0.8 * rough);
    let step = step.unwrap_or(10.0 * decade);
    let first = (from / step).ceil();
    let ticks = std::iter::successors(Some(first), |place| Some(place + 1.0)).map(|place| place * step);
    ticks.take_while(|tick| *tick <= to * (1.0 + 1e-9)).take(24).collect()
}

/// A time with its unit, three digits.
pub(super) fn time(seconds: f64) -> String {
    if seconds <= 0.0 {
        "0".to_owned()
    } else if seconds < 0.9995 {
        format!("{} ms", digits(1e3 * seconds, 3))
    } else {
        format!("{} s", digits(seconds, 3))
    }
}

/// So many significant digits, without zeros at the end of a fraction.
pub(super) fn digits(value: f64, count: i32) -> String {
    let before: i32 = match value.abs() {
        value if value >= 100.0 => 3,
        value if value >= 10.0 => 2,
        value if value >= 1.0 => 1,
        _ => 0,
    };
    let decimals = usize::try_from((count - before).max(0)).unwrap_or_default();
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_between_the_ends() {
        let scale = Scale::log([0.01, 100.0], [200.0, 0.0]);
        let close = |value, pixel: f64| assert!((scale.pixel(value) - pixel).abs() < 1e-9, "{value}");
        close(0.01, 200.0);
        close(1.0, 100.0);
        close(100.0, 0.0);
        assert!(scale.pixel(0.0).is_finite());
        assert!((Scale::linear([5.0, 5.0], [0.0, 10.0]).pixel(5.0) - 5.0).abs() < 1e-9);
    }

    #[test]
    fn ticks_are_round_and_on_the_scale() {
        assert_eq!(Scale::log([0.009, 110.0], [0.0, 1.0]).ticks(), [0.01, 0.1, 1.0, 10.0, 100.0]);
        assert_eq!(Scale::log([0.9, 11.0], [0.0, 1.0]).ticks(), [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(Scale::linear([0.0, 10.0], [0.0, 1.0]).ticks(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
    }

    #[test]
    fn times_that_differ_much_are_on_a_logarithmic_scale() {
        assert!(Scale::of_times([0.1, 10.0].into_iter(), [0.0, 1.0]).is_log);
        let near = Scale::of_times([10.0, 14.0, 0.0].into_iter(), [0.0, 100.0]);
        assert!(!near.is_log && near.pixel(0.0).abs() < 1e-9);
        assert!(Scale::of_times(std::iter::empty(), [0.0, 1.0]).ticks().len() > 2);
    }

    #[test]
    fn numbers_have_units_and_no_more_digits_than_mean_something() {
        let times = [0.0, 0.001_4, 0.05, 0.25, 0.9996, 3.456, 14.72, 183.4].map(time);
        assert_eq!(times, ["0", "1.4 ms", "50 ms", "250 ms", "1 s", "3.46 s", "14.7 s", "183 s"]);
    }
}
