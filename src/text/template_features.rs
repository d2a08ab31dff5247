//! Tests: what chat templates use, each feature against jinja2's own text (`template_cases.json`).
//!
//! The cases cover expressions, filters, methods, whitespace, loops, macros and templates in the manner of Llama 3,
//! Qwen 3 and Mistral. Here are also the bounds on hostile templates.

use serde_json::{Value as Json, json};

use super::chat::{ChatInput, ChatTemplate, ContentForm};
use super::error::TextError;

const NOW_UNIX_S: i64 = 1_735_646_400;

/// The variables of a case, each in its place.
fn input(variables: &Json) -> ChatInput {
    let mut variables = variables.as_object().unwrap().clone();
    let mut list = |name: &str| variables.shift_remove(name).map(|v| v.as_array().unwrap().clone());
    let (messages, tools) = (list("messages").unwrap_or_default(), list("tools"));
    let mut text =
        |name: &str| variables.shift_remove(name).map_or(String::new(), |v| v.as_str().unwrap().to_owned());
    let (bos_token, eos_token) = (text("bos_token"), text("eos_token"));
    let add_generation_prompt = variables.shift_remove("add_generation_prompt") == Some(Json::Bool(true));
    let now_unix_s = NOW_UNIX_S;
    ChatInput {
        messages,
        tools,
        add_generation_prompt,
        bos_token,
        eos_token,
        variables,
        now_unix_s,
        ..Default::default()
    }
}

fn render(source: &str, input: &ChatInput) -> Result<String, TextError> {
    ChatTemplate::new(source)?.render(input)
}

#[test]
fn every_feature_renders_as_jinja_renders_it() {
    let cases: Json = serde_json::from_str(include_str!("template_cases.json")).unwrap();
    let cases = cases["cases"].as_array().unwrap();
    let mut wrong = Vec::new();
    for case in cases {
        let result = render(case["template"].as_str().unwrap(), &input(&case["variables"]));
        let right = match &result {
            Ok(text) => case["text"] == text.as_str(),
            Err(TextError::TemplateRefused { text }) => case["refused"] == text.as_str(),
            Err(TextError::TemplateRender { .. }) => case.get("fails").is_some(),
            Err(_) => false,
        };
        if !right {
            let expected = ["text", "refused", "fails"].map(|key| &case[key]);
            wrong.push(format!("{}\n expected {expected:?}\n got      {result:?}", case["name"]));
        }
    }
    assert!(cases.len() > 50, "{} cases", cases.len());
    assert!(wrong.is_empty(), "{} of {} wrong:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn a_template_that_takes_strings_gets_the_parts_joined_and_one_that_takes_parts_gets_them() {
    let strings = "{% for m in messages %}{{ m.content }};{% endfor %}";
    let parts = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %};{% endfor %}";
    let both = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
                {% for p in m.content %}{{ p.text }}{% endfor %}{% endif %};{% endfor %}";
    let input = input(&json!({"messages": [
        {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
    ]}));
    for (source, form) in
        [(strings, ContentForm::Strings), (parts, ContentForm::Parts), (both, ContentForm::Both)]
    {
        let template = ChatTemplate::new(source).unwrap();
        assert_eq!(template.content_form(), form, "{source}");
        assert_eq!(template.render(&input).unwrap(), "a b;c;", "{source}");
    }
}

#[test]
fn a_part_that_is_no_text_is_refused_where_only_strings_are_taken() {
    let input = input(&json!({"messages": [{"role": "user", "content": [{"type": "image", "url": "u"}]}]}));
    let text = render("{{ messages[0].content }}", &input).unwrap_err().to_string();
    assert!(text.starts_with("message 0 has a content part of type \"image\""), "{text}");
}

#[test]
fn arguments_of_a_call_are_an_object_where_their_text_is_one() {
    let source = "{% for c in messages[0].tool_calls %}{% set f = c.function or c %}\
                  {{ f.arguments is string }} {{ f.arguments | tojson }};{% endfor %}";
    let input = input(&json!({"messages": [{"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [\"é\"]}"}},
        {"name": "g", "arguments": "{\"x\": {}}"},
        {"function": {"name": "h", "arguments": "[1]"}},
        {"function": {"name": "h", "arguments": "{broken"}},
        {"function": {"name": "h"}},
    ]}]}));
    let text = render(source, &input);
    // The last call has no arguments at all, which Python cannot write as JSON either.
    assert!(matches!(text, Err(TextError::TemplateRender { .. })), "{text:?}");
    let mut input = input;
    input.messages[0]["tool_calls"].as_array_mut().unwrap().pop();
    assert_eq!(
        render(source, &input).unwrap(),
        "False {\"b\": 1, \"a\": [\"é\"]};False {\"x\": {}};True \"[1]\";True \"{broken\";"
    );
}

#[test]
fn an_error_is_one_line_with_the_place() {
    let text = ChatTemplate::new("a\n{% if %}").unwrap_err().to_string();
    assert!(text.contains("does not parse") && text.contains(":2") && !text.contains('\n'), "{text}");
    let text = render("a\nb{{ x.y }}", &ChatInput::default()).unwrap_err().to_string();
    assert!(text.contains("failed") && text.contains(":2") && !text.contains('\n'), "{text}");
    let text = render("{{ raise_exception('roles!') }}", &ChatInput::default()).unwrap_err().to_string();
    assert_eq!(text, "the chat template refuses the messages: roles!; change the messages as it asks");
}

#[test]
fn a_hostile_template_ends_with_an_error() {
    let doubling =
        "{% set ns = namespace(x=['a']) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    let deep = "{% set ns = namespace(x=[]) %}{% for i in range(900) %}{% set ns.x = [ns.x] %}{% endfor %}";
    let sources = [
        "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}".to_owned(),
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}".to_owned(),
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}".to_owned(),
        "{{ 'x' * 10000000000 }}".to_owned(),
        "{{ 'x'.ljust(10000000000) }}".to_owned(),
        "{{ '7'.zfill(10000000000) }}".to_owned(),
        "{{ 'a'.replace('', 'x' * 100000) * 100000 }}".to_owned(),
        "{{ range(1000000000000) | list }}".to_owned(),
        "{{ '%1000000000d' | format(1) }}".to_owned(),
        "{{ strftime_now('%c' * 2000000) * 1000 }}".to_owned(),
        format!("{doubling}{{{{ ns.x | tojson }}}}"),
        format!("{doubling}{{{{ ns.x }}}}"),
        format!("{doubling}{{{{ ns.x | string }}}}"),
        format!("{deep}{{{{ ns.x | tojson }}}}"),
        format!("{deep}{{{{ ns.x }}}}"),
        "{% include 'chat_template' %}".to_owned(),
        "{% include '/etc/passwd' %}".to_owned(),
        "((((((((((".to_owned() + "{{ " + &"(".repeat(100_000) + "}}",
        "{% if true %}".repeat(9_000),
    ];
    for source in sources {
        let shown = &source[..source.len().min(120)];
        println!("{shown}");
        let result = render(&source, &ChatInput::default());
        assert!(result.is_err(), "{shown}: {:?} bytes", result.map(|t| t.len()));
    }
}

#[test]
fn values_nested_as_deep_as_work_allows_do_no_harm() {
    // One unit of work a level: lists inside lists in one expression, again and again.
    let (open, close) = ("[".repeat(40), "]".repeat(40));
    let (dict, end) = ("{'a': ".repeat(40), "}".repeat(40));
    let nest = |x: &str, from: &str, to: &str, rounds: usize| {
        format!("{{% for i in range({rounds}) %}}{{% set ns.{x} = {from}ns.{x}{to} %}}{{% endfor %}}")
    };
    let lists = |rounds| nest("x", &open, &close, rounds) + &nest("y", &open, &close, rounds);
    let start = "{% set ns = namespace(x=[], y=[]) %}";
    let sources = [
        format!("{start}{}{{{{ 1 }}}}", nest("x", &open, &close, 100_000)),
        format!("{start}{}{{{{ 1 }}}}", nest("x", &dict, &end, 100_000)),
        format!("{start}{}{{{{ ns.x == ns.y }}}}", lists(2_000)),
        format!("{start}{}{{{{ ns.x < ns.y }}}}", lists(2_000)),
        format!("{start}{}{{{{ [ns.x, ns.y] | sort | length }}}}", lists(2_000)),
        format!("{start}{}{{{{ [ns.x, ns.y] | unique | list | length }}}}", lists(2_000)),
        format!("{start}{}{{{{ {{ns.x: 1}}[ns.y] }}}}", lists(2_000)),
        format!("{start}{}{{{{ ns.x ~ '' }}}}", lists(2_000)),
        format!("{start}{}{{{{ [ns.x] | join }}}}", lists(2_000)),
        format!("{start}{}{{{{ ns.x | trim }}}}", lists(2_000)),
        format!("{start}{}{{{{ ns.x | pprint }}}}", lists(2_000)),
        format!("{start}{}{{{{ '%s' | format(ns.x) }}}}", lists(2_000)),
        format!("{start}{}{{{{ '{{}}'.format(ns.x) }}}}", lists(2_000)),
        format!("{start}{}{{{{ debug() }}}}", lists(2_000)),
        format!("{start}{}{{{{ ns.x | tojson }}}}", lists(2_000)),
        format!("{start}{}{{{{ ns.x }}}}", lists(2_000)),
        format!("{start}{}{{{{ ns }}}}", lists(2_000)),
        format!("{start}{}{{{{ ns.x.foo }}}}", lists(2_000)),
        format!("{start}{}{{{{ raise_exception(ns.x) }}}}", lists(2_000)),
        format!("{{{{ 1{} }}}}", "*1".repeat(60_000)),
        format!("{{{{ x{} }}}}", ".a".repeat(60_000)),
        format!("{{{{ x{} }}}}", "()".repeat(60_000)),
        format!("{{{{ x{} }}}}", "|e".repeat(60_000)),
        format!("{{{{ 1{} }}}}", "~1".repeat(4_096)),
        format!("{{{{ 1{} }}}}", "~1".repeat(60_000)),
        format!("{{{{ 'a'{} }}}}", "+'a'".repeat(4_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(120_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(30_000)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{%elif 0%}".repeat(12_000)),
        format!("{{{{ {}1 }}}}", "1 if 0 else ".repeat(10_000)),
        format!("{{{{ 1{} }}}}", "<1".repeat(60_000)),
        format!("{{{{ 1{} }}}}", " and 1".repeat(20_000)),
        "{{".repeat(60_000),
        "{%raw%}".repeat(18_000),
    ];
    for source in sources {
        // Text or an error, but an end.
        let result = render(&source, &ChatInput::default());
        let bytes = result.as_ref().map_or(0, String::len);
        assert!(bytes < 1 << 20, "{}: {bytes} bytes", &source[source.len().saturating_sub(40)..]);
    }
}
