//! Chat templates: messages in, the text of a prompt out, as Hugging Face's transformers renders them.
//!
//! The rendered text ends where generation starts; tokenise it with control tokens parsed and bos unless written.
//! Invariants: rendering reads no clock, file or environment, and ends within [`FUEL`] units of work on a stack that
//! holds whatever that work can nest, so a hostile template costs a bounded time and gives an error.
//! Not bounded: minijinja writes a list that holds itself many times over (`[x, x]`, again and again) without fuel
//! where `~`, `join` or a string filter makes text of it; read templates from files that you trust.
//! Does not know: token ids. Source: tokenizer specification, section 8.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Serde, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, State, UndefinedBehavior, Value};
use serde_json::{Value as Json, json};

use super::error::TextError;
use super::{clock, generation, json as python_json, methods, python};

/// Work for one rendering: an instruction or 64 bytes cost one unit. A real template takes some hundred units a
/// message, so thousands of messages fit; the bound is reached in a fraction of a second.
const FUEL: u64 = 2_000_000;

/// The longest template that is read; real ones have up to some 20 kB.
const SOURCE_BYTES_MAX: usize = 128 << 10;

/// The engine folds `a ~ b ~ c` and `a + b + c` of constants while it parses, in time quadratic in their number and without fuel; real
/// templates have some hundred.
const JOINS_MAX: usize = 4_096;

/// Address space for the stack of a rendering; memory is taken only as far as it is used. The engine frees nested
/// values and syntax trees by recursion: a level of values costs a unit of fuel and at most 256 B of stack, a level of
/// syntax a byte of source and at most 4 KiB.
const STACK_BYTES: usize = 512 << 20;

/// The name of the only template in its environment; error messages show it.
const NAME: &str = "chat_template";

/// How a template takes the content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentForm {
    /// As a string only; parts are joined.
    Strings,
    /// As a list of parts only; a string becomes one part.
    Parts,
    /// Either way.
    Both,
}

/// What a template turns into a prompt.
#[derive(Clone, Debug, Default)]
pub struct ChatInput {
    /// Objects with `role`, `content`, and optionally `tool_calls`, `tool_call_id`, `name`, `reasoning_content`.
    pub messages: Vec<Json>,
    /// Descriptions of tools; without them the variable is undefined.
    pub tools: Option<Vec<Json>>,
    /// Documents; without them the variable is undefined.
    pub documents: Option<Vec<Json>>,
    /// Whether the text ends with the start of an answer.
    pub add_generation_prompt: bool,
    /// The text of the bos token, empty without one.
    pub bos_token: String,
    /// The text of the eos token, empty without one.
    pub eos_token: String,
    /// Further variables such as `enable_thinking`; they stand above those of the same name here.
    pub variables: serde_json::Map<String, Json>,
    /// The time for `strftime_now`, seconds since 1970 in UTC.
    pub now_unix_s: i64,
}

/// A parsed chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    content: ContentForm,
}

/// The text with which a template refused its input.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

impl ChatTemplate {
    /// Parses a template and finds out, by rendering a short message, how it takes contents.
    pub fn new(source: &str) -> Result<ChatTemplate, TextError> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(TextError::TemplateSize { bytes: source.len(), bytes_max: SOURCE_BYTES_MAX });
        }
        if source.matches(['~', '+']).count() > JOINS_MAX {
            let message = format!("more than {JOINS_MAX} joins by `~` or `+`");
            return Err(TextError::TemplateSyntax { message });
        }
        on_deep_stack(|| ChatTemplate::parse(source))
    }

    fn parse(source: &str) -> Result<ChatTemplate, TextError> {
        let syntax = |e: minijinja::Error| TextError::TemplateSyntax { message: message_of(&e) };
        let mut environment = environment().map_err(syntax)?;
        environment.add_template_owned(NAME, generation::without_generation_marks(source)).map_err(syntax)?;
        let mut template = ChatTemplate { environment, content: ContentForm::Both };
        template.content = template.find_content_form();
        Ok(template)
    }

    /// How the template takes the content of a message.
    pub fn content_form(&self) -> ContentForm {
        self.content
    }

    /// The text of the prompt.
    pub fn render(&self, input: &ChatInput) -> Result<String, TextError> {
        let messages: Result<Vec<Json>, TextError> =
            input.messages.iter().enumerate().map(|(i, m)| self.fitting(i, m)).collect();
        let messages = messages?;
        on_deep_stack(|| self.render_messages(&messages, input))
    }

    fn render_messages(&self, messages: &[Json], input: &ChatInput) -> Result<String, TextError> {
        let now_unix_s = input.now_unix_s;
        let strftime_now = move |format: String| clock::strftime(&format, now_unix_s);
        let mut context: Vec<(&str, Value)> = vec![
            ("messages", Value::from(Serde(messages))),
            ("add_generation_prompt", input.add_generation_prompt.into()),
            ("bos_token", input.bos_token.as_str().into()),
            ("eos_token", input.eos_token.as_str().into()),
            ("strftime_now", Value::from_function(strftime_now)),
        ];
        context.extend(input.tools.as_ref().map(|v| ("tools", Value::from(Serde(v)))));
        context.extend(input.documents.as_ref().map(|v| ("documents", Value::from(Serde(v)))));
        context.extend(input.variables.iter().map(|(name, v)| (name.as_str(), Value::from(Serde(v)))));
        let context: std::collections::BTreeMap<&str, Value> = context.into_iter().collect();
        let template = self.environment.get_template(NAME).map_err(render_error)?;
        template.render(Value::from(context)).map_err(render_error)
    }

    /// The message as the template takes it: content in its form, call arguments as objects.
    fn fitting(&self, index: usize, message: &Json) -> Result<Json, TextError> {
        let mut message = message.clone();
        if let Some(calls) = message.get_mut("tool_calls").and_then(Json::as_array_mut) {
            for call in calls {
                let call = if call.get("function").is_some() { &mut call["function"] } else { call };
                let parsed = call.get("arguments").and_then(Json::as_str).map(serde_json::from_str::<Json>);
                if let Some(Ok(object @ Json::Object(_))) = parsed {
                    call["arguments"] = object;
                }
            }
        }
        match (self.content, message.get("content")) {
            (ContentForm::Strings, Some(Json::Array(parts))) => {
                message["content"] = join_parts(index, parts)?.into();
            }
            (ContentForm::Parts, Some(Json::String(text))) => {
                message["content"] = json!([{"type": "text", "text": text}]);
            }
            _ => {}
        }
        Ok(message)
    }

    /// A template that takes parts writes their texts as it writes a string; one that does not fails, or shows the
    /// list itself.
    fn find_content_form(&self) -> ContentForm {
        const TEXT: &str = "tandem-content";
        let rendered = |content: Json| {
            let messages = [json!({"role": "user", "content": content})];
            self.render_messages(&messages, &ChatInput::default()).ok().filter(|text| text.contains(TEXT))
        };
        let string = rendered(TEXT.into());
        let parts = rendered(json!([{"type": "text", "text": TEXT}]));
        match (string, parts) {
            (Some(a), Some(b)) if a == b => ContentForm::Both,
            (None, Some(_)) => ContentForm::Parts,
            _ => ContentForm::Strings,
        }
    }
}

/// Runs `work` on a thread of its own with [`STACK_BYTES`] of stack.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> Result<T, TextError> + Send) -> Result<T, TextError> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("chat-template".into()).stack_size(STACK_BYTES);
        let thread =
            builder.spawn_scoped(scope, work).map_err(|error| TextError::TemplateThread { error })?;
        let panicked = || TextError::TemplateRender { message: "the template engine panicked".into() };
        thread.join().unwrap_or_else(|_| Err(panicked()))
    })
}

fn join_parts(index: usize, parts: &[Json]) -> Result<String, TextError> {
    let mut text = String::new();
    for part in parts {
        let kind = part.get("type").and_then(Json::as_str).unwrap_or("text");
        match (part, part.get("text")) {
            (Json::String(t), _) | (_, Some(Json::String(t))) if kind == "text" => text.push_str(t),
            _ => return Err(TextError::ContentPart { index, kind: kind.to_owned() }),
        }
    }
    Ok(text)
}

fn environment() -> Result<Environment<'static>, minijinja::Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_fuel(Some(FUEL));
    env.set_unknown_method_callback(methods::call);
    env.set_formatter(|out, state, value| match value.kind() {
        ValueKind::String => minijinja::escape_formatter(out, state, value),
        _ => Ok(out.write_str(&python::str_text(state, value)?)?),
    });
    // Debugging aids whose indentation is not paid for in fuel; no template needs them.
    env.remove_filter("pprint");
    env.remove_global("debug");
    env.add_filter("tojson", python_json::tojson);
    env.add_filter("string", |state: &State, value: &Value| python::str_text(state, value));
    env.add_test("sequence", python::is_sequence);
    env.add_test("iterable", python::is_iterable);
    env.add_test("number", python::is_number);
    env.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.0));
    env.add_function("joiner", minijinja_contrib::globals::joiner);
    env.add_function("raise_exception", |text: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, text.clone()).with_source(Refusal(text)))
    });
    Ok(env)
}

fn render_error(error: minijinja::Error) -> TextError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(e) = cause {
        if let Some(Refusal(text)) = e.downcast_ref() {
            return TextError::TemplateRefused { text: text.clone() };
        }
        if e.downcast_ref::<minijinja::Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
            return TextError::TemplateWork { fuel: FUEL };
        }
        cause = e.source();
    }
    TextError::TemplateRender { message: message_of(&error) }
}

/// One line: what, and the template's line.
fn message_of(error: &minijinja::Error) -> String {
    let what = error.to_string();
    what.lines().next().unwrap_or_default().to_owned()
}
