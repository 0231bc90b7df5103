//! What a call is refused with, and a configuration as a message brings it (spec/rules/config.md).

use crate::json::{object, write, Value};
use crate::sha256::{none_hash, Hash};

pub const NAME: &str = "rust-example";
const MOST_TOKENS: i64 = (1 << 53) - 1; // KV-ERR-6
const MOST_BLOCK_SIZE: i64 = 1 << 40;

/// An error answer, made before anything is changed (KV-ERR-2).
#[derive(Debug)]
pub struct Refusal {
    pub class: &'static str,
    pub message: String,
    pub fields: Value,
}
pub type Answer<T> = Result<T, Refusal>;

fn shown(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    text.chars().take(60).collect()
}
fn refused(class: &'static str, field: &str, value: &Value, allowed: &str) -> Refusal {
    let fields = [("field", Value::Text(field.into())), ("value", value.clone())];
    let Value::Object(mut fields) = object(fields) else { unreachable!() };
    fields.push(("allowed".into(), Value::Text(allowed.into())));
    let message = format!("{field} = {}: must be {allowed}", shown(value));
    Refusal { class, message, fields: Value::Object(fields) }
}
pub fn invalid(field: &str, value: &Value, allowed: &str) -> Refusal {
    refused("InvalidArgumentError", field, value, allowed)
}
pub fn bad_config(field: &str, value: &Value, allowed: &str) -> Refusal {
    refused("ConfigError", field, value, allowed)
}
pub fn stale(group: usize, index: usize, block: i64) -> Refusal {
    let field = format!("new_computed_blocks[{group}][{index}]");
    let mut refusal =
        refused("StaleHitError", &field, &Value::Int(block), "a block with the hash of that place");
    if let Value::Object(fields) = &mut refusal.fields {
        let more = [("group", group as i64), ("index", index as i64), ("block_id", block)];
        fields.extend(more.map(|(name, number)| (name.to_string(), Value::Int(number))));
    }
    refusal
}
pub fn unsupported(what: &str) -> Refusal {
    let fields = [("capability", Value::Text(what.into())), ("implementation", Value::Text(NAME.into()))];
    let message = format!("{NAME} does not support {what}");
    Refusal { class: "UnsupportedError", message, fields: object(fields) }
}
pub fn broken(reason: &str, message: impl Into<String>) -> Refusal {
    let fields = object([("reason", Value::Text(reason.into()))]);
    Refusal { class: "ProtocolError", message: message.into(), fields }
}

pub fn member<'a>(value: &'a Value, name: &str) -> Answer<&'a Value> {
    value.get(name).ok_or_else(|| broken("bad_message", format!("missing: {name}")))
}
/// A count: at least 0, and what a double holds exactly.
pub fn count(field: &str, value: &Value) -> Answer<i64> {
    let fits = value.int().filter(|number| (0..=MOST_TOKENS).contains(number));
    fits.ok_or_else(|| invalid(field, value, "an int in 0 ... 2^53 - 1"))
}
pub fn flag(field: &str, value: &Value) -> Answer<bool> {
    value.truth().ok_or_else(|| invalid(field, value, "true or false"))
}
fn within(value: &Value, name: &str, most: i64) -> Answer<i64> {
    let found = member(value, name)?;
    let fits = found.int().filter(|number| (1..=most).contains(number));
    fits.ok_or_else(|| bad_config(name, found, &format!("an int in 1 ... {most}")))
}

pub struct GroupConfig {
    pub block_size: i64,
    pub window: Option<i64>, // None: full attention
    pub extra: i64,          // tokens before the window that keep their blocks (KV-SW-9)
    pub same_as: usize,      // the first group with an equal spec
}

pub struct Config {
    pub groups: Vec<GroupConfig>,
    pub num_blocks: i64,
    pub max_model_len: i64,
    pub alignment: i64, // the scheduler's block size
    pub hash_size: i64,
    pub caching: bool,
    pub unhashed_to_front: bool,
    pub none_hash: Hash,
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
/// Every member counts, in whatever order they come (KV-CFG-1).
fn same_spec(a: &Value, b: &Value) -> bool {
    let holds = |one: &Value, other: &Value| match one {
        Value::Object(members) => members.iter().all(|(name, value)| other.get(name) == Some(value)),
        _ => false,
    };
    holds(a, b) && holds(b, a)
}

impl Config {
    pub fn is_hybrid(&self) -> bool {
        self.caching && self.groups.len() > 1
    }

    pub fn read(value: &Value) -> Answer<Config> {
        let listed = member(value, "groups")?.list().unwrap_or(&[]);
        let mut groups = Vec::new();
        for group in listed {
            groups.push(read_group(member(group, "spec")?, listed)?);
        }
        refuse_what_is_lacking(value, listed)?;
        let caching = flag("enable_caching", member(value, "enable_caching")?)?;
        if caching && (groups.is_empty() || groups.len() > 1 && groups.iter().all(|g| g.same_as == 0)) {
            let number = Value::Int(groups.len() as i64); // KV-CFG-3, KV-COORD-3
            return Err(bad_config("groups", &number, "one, or two different ones, with caching"));
        }
        let max_model_len = within(value, "max_model_len", MOST_TOKENS)?;
        if value.given("max_num_batched_tokens").is_some() {
            within(value, "max_num_batched_tokens", MOST_TOKENS)?;
        }
        let to_front = value.get("policy").and_then(|policy| policy.get("unhashed_freed_to"));
        let seed = value.given("python_hash_seed").and_then(Value::text);
        let mut config = Config {
            groups,
            num_blocks: within(value, "num_blocks", MOST_TOKENS)?,
            max_model_len,
            alignment: 1,
            hash_size: 0,
            caching,
            unhashed_to_front: to_front.is_none_or(|choice| choice.text() == Some("front")),
            // Without a seed any parent will do that nobody can guess; the time is a poor one.
            none_hash: none_hash(seed.unwrap_or(&format!("{:?}", std::time::SystemTime::now()))),
        };
        config.derive_block_sizes(value)?;
        Ok(config)
    }

    fn derive_block_sizes(&mut self, value: &Value) -> Answer<()> {
        for group in &self.groups {
            let step = group.block_size / gcd(self.alignment, group.block_size);
            if step > MOST_BLOCK_SIZE / self.alignment {
                let size = Value::Int(group.block_size);
                return Err(bad_config("groups", &size, "block sizes with an LCM of at most 2^40"));
            }
            self.alignment *= step; // KV-CFG-4
            self.hash_size = gcd(self.hash_size, group.block_size); // KV-CFG-5
        }
        if self.groups.is_empty() {
            for name in ["hash_block_size", "scheduler_block_size"] {
                if value.given(name).is_some() {
                    self.alignment = within(value, name, MOST_TOKENS)?;
                }
            }
            self.hash_size = self.alignment;
            return Ok(());
        }
        let scheduler = value.given("scheduler_block_size");
        if let Some(given) = scheduler.filter(|given| given.int() != Some(self.alignment)) {
            return Err(bad_config("scheduler_block_size", given, &self.alignment.to_string()));
        }
        if !self.caching {
            self.hash_size = self.alignment;
        }
        if let Some(given) = value.given("hash_block_size").filter(|_| self.is_hybrid()) {
            let divides = |size: &i64| *size >= 1 && self.hash_size % size == 0;
            self.hash_size = given.int().filter(divides).ok_or_else(|| {
                bad_config("hash_block_size", given, "a divisor of every block size")
            })?;
        }
        Ok(())
    }
}

fn read_group(spec: &Value, listed: &[Value]) -> Answer<GroupConfig> {
    let kind = member(spec, "type")?.text().unwrap_or("no type");
    let window = match kind {
        "FullAttentionSpec" => None,
        "SlidingWindowSpec" => Some(within(spec, "sliding_window", MOST_TOKENS)?),
        _ => return Err(unsupported(kind)),
    };
    let extra = match spec.given("extra_retained_tokens").filter(|_| window.is_some()) {
        Some(found) => found.int().filter(|number| (0..=MOST_TOKENS).contains(number)).ok_or_else(|| {
            bad_config("extra_retained_tokens", found, &format!("an int in 0 ... {MOST_TOKENS}"))
        })?,
        None => 0,
    };
    let is_equal = |group: &Value| group.get("spec").is_some_and(|other| same_spec(other, spec));
    let same_as = listed.iter().position(is_equal).unwrap_or(0);
    let block_size = within(spec, "block_size", MOST_BLOCK_SIZE)?;
    Ok(GroupConfig { block_size, window, extra, same_as })
}

fn refuse_what_is_lacking(value: &Value, groups: &[Value]) -> Answer<()> {
    let is = |value: Option<&Value>, usual: Value| value.is_none_or(|found| *found == usual);
    let flagged = groups.iter().any(|group| !is(group.get("is_eagle_group"), Value::Bool(false)));
    let lacks = [
        (flagged || !is(value.get("use_eagle"), Value::Bool(false)), "eagle"),
        (!is(value.get("dcp_world_size"), Value::Int(1)), "context parallelism"),
        (!is(value.get("pcp_world_size"), Value::Int(1)), "context parallelism"),
        (value.given("prefix_cache_retention_interval").is_some(), "retention"),
        (value.get("watermark").and_then(Value::real).unwrap_or(0.0) != 0.0, "a watermark"),
        (!is(value.get("hash_function"), Value::Text("sha256_cbor".into())), "that hash function"),
    ];
    match lacks.into_iter().find(|(lacking, _)| *lacking) {
        Some((_, what)) => Err(unsupported(what)),
        None => Ok(()),
    }
}
