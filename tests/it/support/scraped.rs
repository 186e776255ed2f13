//! The metrics page as a whole, read strictly.

use std::collections::{BTreeMap, BTreeSet};

/// Everything that one scrape has brought. Families are called as in the text format, counters with `_total`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scraped {
    /// The kind of each family. One without a sample is not there.
    pub(crate) kinds: BTreeMap<String, String>,
    /// Each sample by its name and labels, as [`series`] writes them.
    pub(crate) samples: BTreeMap<String, f64>,
}

/// A name with labels in the order of their names.
pub(crate) fn series(name: &str, labels: &[(&str, &str)]) -> String {
    if labels.is_empty() {
        return name.to_owned();
    }
    let labels: BTreeMap<_, _> = labels.iter().copied().collect();
    let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
    format!("{name}{{{}}}", labels.join(","))
}

/// The name of a series, and its labels as they stand in it.
pub(crate) fn name_and_labels(series: &str) -> (&str, &str) {
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    (name, labels.strip_suffix('}').expect("labels end"))
}

impl Scraped {
    /// Reads a page in the text format.
    ///
    /// # Panics
    /// When it is not as the format says.
    pub(crate) fn text(page: &str) -> Self {
        assert!(page.ends_with('\n') && !page.contains("# EOF"), "{page}");
        Self::read(page.lines(), false)
    }

    /// Reads a page in the format of OpenMetrics.
    ///
    /// # Panics
    /// When it is not as the format says.
    pub(crate) fn open_metrics(page: &str) -> Self {
        let lines = page.strip_suffix("# EOF\n").expect("the page ends with its end mark");
        Self::read(lines.lines(), true)
    }

    fn read<'a>(lines: impl Iterator<Item = &'a str>, is_open_metrics: bool) -> Self {
        let mut page = Self::default();
        let (mut helped, mut family, mut kind) = (String::new(), String::new(), String::new());
        for line in lines {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, text) = help.split_once(' ').expect("a help text");
                assert!(text.len() > 10, "{line}");
                helped = name.to_owned();
            } else if let Some(declared) = line.strip_prefix("# TYPE ") {
                let (name, its_kind) = declared.split_once(' ').expect("a kind");
                assert_eq!(name, helped, "the help text comes first");
                let is_unsuffixed = is_open_metrics && its_kind == "counter";
                family = if is_unsuffixed { format!("{name}_total") } else { name.to_owned() };
                its_kind.clone_into(&mut kind);
                assert_eq!(kind == "counter", family.ends_with("_total"), "{line}");
                assert_eq!(page.kinds.insert(family.clone(), kind.clone()), None, "{line}: a family stands once");
            } else {
                page.sample(line, &family, &kind);
            }
        }
        page.check_histograms();
        page
    }

    fn sample(&mut self, line: &str, family: &str, kind: &str) {
        let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
        let (name, labels) = name_and_labels(series);
        let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_count", "_sum"] } else { &[""] };
        let is_of_family = suffixes.iter().any(|suffix| name.strip_suffix(suffix) == Some(family));
        assert!(is_of_family, "{line} stands below {family}");
        // No label of Tidegate's has a comma, a quotation mark or a backslash in the tests.
        let labels: Vec<(&str, &str)> = labels
            .split(',')
            .filter(|label| !label.is_empty())
            .map(|label| {
                let (name, value) = label.split_once('=').expect("a label has a value");
                let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
                (name, value.unwrap_or_else(|| panic!("{line}: a value is quoted")))
            })
            .collect();
        let names: BTreeSet<&str> = labels.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), labels.len(), "{line}: a label stands once");
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}: a sample is a number"));
        assert!(value.is_finite(), "{line}");
        let before = self.samples.insert(self::series(name, &labels), value);
        assert_eq!(before, None, "{line}: a sample stands once");
    }

    /// Buckets hold all below them, and the last one everything.
    fn check_histograms(&self) {
        let mut rising: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for (series, value) in &self.samples {
            let (name, labels) = name_and_labels(series);
            let Some(family) = name.strip_suffix("_bucket") else { continue };
            let (bounds, others): (Vec<&str>, Vec<&str>) =
                labels.split(',').partition(|label| label.starts_with("le="));
            let bound = bounds[0].trim_start_matches("le=").trim_matches('"').parse().expect("a bound is a number");
            let count = format!("{family}_count{{{}}}", others.join(",")).replace("{}", "");
            rising.entry(count).or_default().push((bound, *value));
        }
        for (count, mut buckets) in rising {
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{count}: {buckets:?}");
            assert_eq!(buckets.last(), Some(&(f64::INFINITY, self.samples[&count])), "{count}");
        }
    }

    /// The sum of all samples of that name.
    pub(crate) fn sum(&self, name: &str) -> f64 {
        let of_name = self.samples.iter().filter(|(series, _)| name_and_labels(series).0 == name);
        of_name.map(|(_, value)| value).sum()
    }
}

/// What differs between two sets of samples, one line each.
pub(crate) fn differences(found: &BTreeMap<String, f64>, expected: &BTreeMap<String, f64>) -> Vec<String> {
    let names: BTreeSet<&String> = found.keys().chain(expected.keys()).collect();
    let word = |value: Option<&f64>| value.map_or_else(|| "not there".to_owned(), ToString::to_string);
    let differing = names.into_iter().filter(|name| found.get(*name) != expected.get(*name));
    differing.map(|name| format!("{name} is {}, not {}", word(found.get(name)), word(expected.get(name)))).collect()
}
