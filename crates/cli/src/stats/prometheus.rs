//! Counters in Prometheus's text format, version 0.0.4: for a scraper, or for the files that
//! node_exporter's textfile collector reads.
//!
//! Names, units and types follow prometheus.io's "Metric and label naming" and "Writing exporters":
//! base units, `_total` for what only grows, `stetfs_info` for what has no number.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value};
use stetfs_format::width::nearest_f64;
use stetfs_media::{Cause, MeterSnapshot};

use super::counters::{Cache, Counters};

/// Counters of the server's JSON that may fall; all others only grow.
const GAUGES: &[&str] = &[
    "blocks_free",
    "cached_bytes",
    "delayed_bytes",
    "dirty_bytes",
    "inodes_cached",
    "inodes_free",
    "waiting_bytes",
];

/// Writes the labels of a sample.
type Labels<'a> = dyn Fn(&[(&str, &str)]) -> String + 'a;

/// Metrics by their names.
#[derive(Default)]
pub(super) struct Metrics(BTreeMap<String, Metric>);

struct Metric {
    kind: &'static str,
    help: String,
    samples: Vec<String>,
}

impl Metrics {
    /// Adds the counters of a volume.
    pub(super) fn add(&mut self, counters: &Counters) {
        let word = |key: &str| counters.server.get(key).and_then(Value::as_str);
        let dir = word("dir").unwrap_or_default();
        let of = |more: &[(&str, &str)]| labels(&[&[("dir", dir)], more].concat());
        let texts = ["image", "options", "transport", "version"];
        let texts: Vec<_> = texts.iter().filter_map(|k| Some((*k, word(k)?))).collect();
        let info = [&texts[..], &[("scheme", counters.scheme.as_str())]].concat();
        self.gauge("info", "A mounted volume.", &of(&info), 1.0);
        if let Some(up) = counters.server.get("uptime_s").and_then(Value::as_f64) {
            self.gauge(
                "uptime_seconds",
                "How long the server has run.",
                &of(&[]),
                up,
            );
        }
        if let Some(deaths) = counters.server.get("deaths").and_then(Value::as_u64) {
            let help = "Servers of the mount that have died and been followed by another one.";
            self.counter("server_deaths_total", help, &of(&[]), deaths);
        }
        let is_stopped = counters.volume.get("stopped").is_some_and(|v| !v.is_null());
        let help = "1 if an error has stopped the journal.";
        self.gauge("stopped", help, &of(&[]), f64::from(u8::from(is_stopped)));
        for (name, help) in [
            ("has_errors", "1 if the volume is marked as damaged."),
            ("read_only", "1 if the volume is read-only."),
        ] {
            let is_so = counters.volume.get(name) == Some(&Value::Bool(true));
            self.gauge(name, help, &of(&[]), f64::from(u8::from(is_so)));
        }
        let all = of(&[]);
        let (written, read) = (counters.bytes_written, counters.bytes_read);
        self.counter(
            "program_written_bytes",
            "Bytes that programs wrote.",
            &all,
            written,
        );
        self.counter(
            "program_read_bytes",
            "Bytes that programs read.",
            &all,
            read,
        );
        self.add_numbers("", &counters.volume, &all);
        self.add_numbers("journal_", &counters.journal, &all);
        if let Some(Value::Object(requests)) = counters.server.get("requests") {
            for (kind, count) in requests {
                let count = count.as_u64().unwrap_or_default();
                let help = "Requests of the kernel that were answered.";
                self.counter("requests", help, &of(&[("kind", kind)]), count);
            }
        }
        for action in &counters.actions {
            let labels = of(&[("action", &action.name)]);
            let help = "What the scheme chose for overwritten blocks.";
            self.counter("actions", help, &labels, action.taken);
        }
        let nvm = counters.nvm.as_ref().map(|nvm| ("memory", &nvm.traffic));
        for (medium, traffic) in [("device", &counters.device)].into_iter().chain(nvm) {
            self.add_traffic(traffic, &|more| of(&[&[("medium", medium)], more].concat()));
        }
        if let Some(cache) = &counters.cache {
            self.add_cache(cache, &all);
        }
    }

    /// Adds counters under their own names, and gauges.
    fn add_numbers(&mut self, prefix: &str, numbers: &Map<String, Value>, labels: &str) {
        let numbers = numbers.iter().filter_map(|(k, v)| Some((k, v.as_u64()?)));
        for (name, number) in numbers.filter(|(name, _)| !name.ends_with("_max")) {
            let (metric, help) = (format!("{prefix}{name}"), name.replace('_', " "));
            let help = format!("What stetfs stats calls \"{help}\".");
            if GAUGES.contains(&name.as_str()) {
                self.gauge(&metric, &help, labels, nearest_f64(number));
            } else {
                self.counter(&metric, &help, labels, number);
            }
        }
    }

    fn add_traffic(&mut self, traffic: &MeterSnapshot, of: &Labels<'_>) {
        for (tag, cell) in traffic.iter() {
            let labels = of(&[("class", tag.class.name()), ("cause", tag.cause.name())]);
            for (name, help, number) in [
                ("written_bytes", "Bytes written.", cell.write_bytes),
                ("writes", "Write requests.", cell.writes),
                ("read_bytes", "Bytes read.", cell.read_bytes),
                ("reads", "Read requests.", cell.reads),
                ("lines", "Cache lines written back.", cell.lines),
            ] {
                self.counter(name, help, &labels, number);
            }
        }
        for cause in Cause::ALL {
            let labels = of(&[("cause", cause.name())]);
            for (name, help, number) in [
                ("flushes", "Flushes.", traffic.flushes(cause)),
                (
                    "durable_writes",
                    "Writes that were durable when they returned (FUA).",
                    traffic.durable_writes(cause),
                ),
                ("fences", "Fences behind stores.", traffic.fences(cause)),
                (
                    "erases",
                    "Erase blocks that were erased.",
                    traffic.erases(cause),
                ),
            ] {
                if number > 0 {
                    self.counter(name, help, &labels, number);
                }
            }
        }
        let busy = nearest_f64(traffic.total_busy_ns()) / 1e9;
        let help = "How long requests took, one after the other.";
        self.sample("busy_seconds_total", ("counter", help), &of(&[]), busy);
    }

    fn add_cache(&mut self, cache: &Cache, labels: &str) {
        for (name, help, number) in [
            (
                "cache_blocks",
                "Blocks of the cache in memory.",
                cache.blocks,
            ),
            ("cache_used_blocks", "Blocks in use.", cache.cached),
            (
                "cache_dirty_blocks",
                "Blocks that are not home.",
                cache.dirty,
            ),
        ] {
            self.gauge(name, help, labels, nearest_f64(number));
        }
        for (name, help, number) in [
            ("cache_hits", "Reads that the cache answered.", cache.hits),
            (
                "cache_dirty_hits",
                "Such reads of blocks that are not home.",
                cache.dirty_hits,
            ),
            (
                "cache_misses",
                "Reads that went to the device.",
                cache.misses,
            ),
            ("cache_evictions", "Blocks that made room.", cache.evictions),
            (
                "cache_written_home",
                "Blocks that were written home.",
                cache.written_home,
            ),
            (
                "cache_cow_copies",
                "Blocks copied to be changed.",
                cache.cow_copies,
            ),
        ] {
            self.counter(name, help, labels, number);
        }
    }

    fn counter(&mut self, name: &str, help: &str, labels: &str, value: u64) {
        let name = format!("{name}_total");
        self.sample(&name, ("counter", help), labels, nearest_f64(value));
    }

    fn gauge(&mut self, name: &str, help: &str, labels: &str, value: f64) {
        self.sample(name, ("gauge", help), labels, value);
    }

    fn sample(&mut self, name: &str, (kind, help): (&'static str, &str), labels: &str, value: f64) {
        let metric = self.0.entry(format!("stetfs_{name}"));
        let metric = metric.or_insert_with(|| Metric {
            kind,
            help: help.to_owned(),
            samples: Vec::new(),
        });
        metric.samples.push(format!("{labels} {value}"));
    }

    /// Returns the text: the samples of each metric together, behind what it is.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (
            name,
            Metric {
                kind,
                help,
                samples,
            },
        ) in &self.0
        {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for sample in samples {
                let _ = writeln!(text, "{name}{sample}");
            }
        }
        text
    }
}

/// Writes labels, with the characters escaped that the format escapes.
fn labels(labels: &[(&str, &str)]) -> String {
    let escaped = |text: &str| {
        let text = text.replace('\\', "\\\\").replace('"', "\\\"");
        text.replace('\n', "\\n")
    };
    let one = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", escaped(value));
    let all: Vec<_> = labels.iter().map(one).collect();
    format!("{{{}}}", all.join(","))
}
