//! What is known, drawn with characters. Colours repeat what words and signs say.

use std::time::{Instant, SystemTime};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Paragraph, Row, Table, TableState};

use super::known::{Decision, Group, Known, Server, Status, seconds, short};

/// Width of a bar, in characters.
const BAR: usize = 18;

const SHORT: Color = Color::Cyan;
const LONG: Color = Color::Yellow;
const CROSSING: Color = Color::Magenta;
const SOFT: Style = Style::new().add_modifier(Modifier::DIM);

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, known: &mut Known, now: Instant) {
    let rows = known.status.as_ref().map_or(1, |status| status.groups.iter().map(|g| g.servers.len() + 1).sum());
    let servers = u16::try_from(rows + 3).unwrap_or(u16::MAX).min(frame.area().height / 2).max(5);
    let figures = u16::try_from(known.classes().len() + 3).unwrap_or(5);
    let [head, servers, figures, decisions, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(servers),
        Constraint::Length(figures.max(6)),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(heading(known), head);
    draw_servers(frame, known, servers);
    let [ttft, traffic] = Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]).areas(figures);
    frame.render_widget(first_tokens(known), ttft);
    frame.render_widget(traffic_of(known, now), traffic);
    frame.render_widget(decisions_of(known, decisions), decisions);
    frame.render_widget(keys(known, now), foot);
}

fn block(title: impl Into<Line<'static>>) -> Block<'static> {
    Block::bordered().border_type(BorderType::Rounded).border_style(SOFT).title(title.into().bold())
}

fn heading(known: &Known) -> Line<'static> {
    let mut spans = vec![Span::from(" Tidegate ").bold()];
    if let Some(status) = &known.status {
        let policy = status.policy.name.replace('_', " ");
        spans.push(format!("{} · policy {policy} · up {}", status.version, seconds(status.uptime_seconds)).into());
    }
    spans.push(format!(" · {} ", known.address).into());
    spans.push(match (&known.lost, &known.status) {
        (Some(why), _) => Span::from(format!("✕ not connected, trying again: {why}")).fg(Color::Red),
        (None, Some(status)) if !status.ready => Span::from("▽ stopping").fg(Color::Yellow),
        (None, Some(_)) => Span::from("● live").fg(Color::Green),
        (None, None) => Span::from("○ connecting").fg(Color::Yellow),
    });
    Line::from(spans)
}

fn draw_servers(frame: &mut Frame<'_>, known: &Known, area: Rect) {
    let Some(status) = &known.status else {
        frame.render_widget(Paragraph::new("no status yet").block(block("Servers")), area);
        return;
    };
    let most_of_group = status.groups.iter().map(|group| group.load_tokens).fold(1.0, f64::max);
    let most_of_server = known.servers().map(|server| server.load_tokens).fold(1.0, f64::max);
    let (mut rows, mut servers, mut selected) = (Vec::new(), 0, None);
    for group in &status.groups {
        rows.push(group_row(group, most_of_group));
        for server in &group.servers {
            if servers == known.selected {
                selected = Some(rows.len());
            }
            rows.push(server_row(server, most_of_server, status));
            servers += 1;
        }
    }
    let widths = [
        Constraint::Min(18),
        Constraint::Length(u16::try_from(BAR).unwrap_or(u16::MAX)),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Fill(2),
    ];
    let header = Row::new(["", "", "in flight", "  tokens", "state"]).style(SOFT);
    let table = Table::new(rows, widths)
        .header(header)
        .block(block("Servers"))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(selected));
}

fn group_row(group: &Group, most: f64) -> Row<'static> {
    let waiting = if group.waiting > 0 { format!("{} waiting", group.waiting) } else { String::new() };
    Row::new([
        Line::from(format!("≈ {}", group.name)).bold(),
        Line::from(bar(group.load_tokens / most)).fg(Color::Blue),
        right(&group.in_flight.to_string(), 9),
        right(&short(group.load_tokens), 8),
        Line::from(waiting),
    ])
}

fn server_row(server: &Server, most: f64, status: &Status) -> Row<'static> {
    let (sign, colour) = match server.health.as_str() {
        "out" => ("✕", Color::Red),
        _ if server.draining => ("▽", Color::Gray),
        "probation" => ("▲", Color::Yellow),
        _ => ("●", Color::Green),
    };
    let mut state = match (server.draining, server.drained) {
        (_, true) => "drained".to_owned(),
        (true, false) => "draining".to_owned(),
        (false, false) => server.health.clone(),
    };
    if server.health != "healthy" {
        let reason = server.health_reason.replace('_', " ");
        state = format!("{state}: {reason}, {}", seconds(server.health_for_seconds));
    }
    if server.ejections > 0 {
        state = format!("{state} · ejected {}x", server.ejections);
    }
    if status.work.as_ref().is_some_and(|work| work.lanes.contains(&server.name)) {
        state = format!("lane · {state}");
    }
    Row::new([
        Line::from(vec![Span::from(format!("  {sign} ")).fg(colour), Span::from(server.name.clone())]),
        Line::from(bar(server.load_tokens / most)).fg(Color::Cyan),
        right(&server.in_flight.to_string(), 9),
        right(&short(server.load_tokens), 8),
        Line::from(state),
    ])
}

fn right(text: &str, width: usize) -> Line<'static> {
    Line::from(format!("{text:>width$}"))
}

/// A bar of eighths of characters.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to the width of a bar")]
fn bar(share: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * (BAR * 8) as f64).round() as usize;
    let filled = format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8]);
    format!("{filled:·<BAR$}")
}

fn class_colour(number: usize, count: usize) -> Color {
    match number {
        0 => SHORT,
        _ if number + 1 == count => LONG,
        _ => Color::Green,
    }
}

fn first_tokens(known: &Known) -> Table<'static> {
    let time = |time: Option<f64>| right(&time.map_or_else(|| "–".to_owned(), seconds), 8);
    let ttft = known.ttft();
    let count = ttft.len();
    let rows = ttft.into_iter().enumerate().map(|(number, one)| {
        let range = one.class.below.map(|below| format!(" below {}", short(below as f64))).unwrap_or_default();
        let name = format!("● {}{range}", one.class.name);
        Row::new([
            Line::from(name).fg(class_colour(number, count)),
            time(one.p50_s),
            time(one.p99_s),
            right(&one.answers.to_string(), 8),
        ])
    });
    let widths = [Constraint::Fill(1), Constraint::Length(8), Constraint::Length(8), Constraint::Length(8)];
    let header = Row::new(["", "     p50", "     p99", " answers"]).style(SOFT);
    Table::new(rows, widths).header(header).block(block("Time to first token, 5 minutes"))
}

fn traffic_of(known: &Known, now: Instant) -> Paragraph<'static> {
    let waiting = known.waiting();
    let held = known.status.as_ref().and_then(|status| status.work.as_ref()).filter(|work| work.held > 0);
    let oldest = held.map(|work| format!(", the oldest for {}", seconds(work.held_for_seconds))).unwrap_or_default();
    let mut lines = vec![
        Line::from(format!("{:.1} requests a second", known.rate(now))),
        Line::from(format!("{waiting} waiting{oldest}")),
    ];
    if let Some(Status { totals, .. }) = &known.status {
        let requests = &totals.requests;
        lines.push(Line::from(format!(
            "{} complete, {} crossed, {} retried",
            requests.complete, totals.redirects, totals.retries
        )));
        lines.push(Line::from(format!(
            "{} left, {} broken, {} rejected",
            requests.client_gone, requests.upstream_broken, requests.rejected
        )));
    }
    Paragraph::new(lines).block(block("Traffic and queue"))
}

fn decisions_of(known: &Known, area: Rect) -> Table<'static> {
    let classes = known.classes();
    let colour = |decision: &Decision| {
        let tokens = decision.tokens.unwrap_or_default();
        let class = classes.iter().position(|class| class.below.is_none_or(|below| tokens < below));
        class_colour(class.unwrap_or_default(), classes.len())
    };
    let rows = known.decisions.iter().take(usize::from(area.height)).map(|decision| {
        let length = decision.tokens.map_or_else(|| "–".to_owned(), |tokens| short(tokens as f64));
        let mut why = Vec::new();
        if decision.home != decision.group {
            why.push(Span::from(format!("{} → {} ", decision.home, decision.group)).fg(CROSSING));
        }
        why.push(decision.reason.replace('_', " ").into());
        if decision.waited_s > 0.001 {
            why.push(format!(", waited {}", seconds(decision.waited_s)).into());
        }
        let outcome = match &decision.outcome {
            None => Line::from("running").style(SOFT),
            Some(outcome) if outcome.is_good => Line::from(outcome.text.clone()),
            Some(outcome) => Line::from(outcome.text.clone()).fg(Color::Red),
        };
        Row::new([
            Line::from(clock(decision.when)).style(SOFT),
            right(&length, 8).fg(colour(decision)),
            Line::from(decision.server.clone()),
            Line::from(why),
            outcome,
        ])
    });
    let widths =
        [Constraint::Length(8), Constraint::Length(8), Constraint::Fill(2), Constraint::Fill(3), Constraint::Fill(3)];
    let missed = if known.missed > 0 { format!(" · {} events were missed", known.missed) } else { String::new() };
    Table::new(rows, widths).block(block(format!("Decisions, UTC{missed}")))
}

/// The time of the day.
fn clock(when: SystemTime) -> String {
    let text = humantime::format_rfc3339_seconds(when).to_string();
    text.get(11..19).unwrap_or_default().to_owned()
}

fn keys(known: &Known, now: Instant) -> Line<'static> {
    if let Some(wish) = &known.asked {
        let what = if wish.is_drain { "gives it nothing new" } else { "gives it requests again" };
        let verb = if wish.is_drain { "Drain" } else { "Undrain" };
        return Line::from(format!(" {verb} {}? It {what}. y yes, any other key no", wish.server)).reversed();
    }
    if let Some(said) = known.said(now) {
        return Line::from(format!(" {said}")).bold();
    }
    Line::from(" q quit   ↑ ↓ select   d drain   u undrain").style(SOFT)
}
