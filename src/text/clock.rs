//! The date and time that a chat template asks for, as C's `strftime` writes them, in UTC.
//!
//! The time is an argument, so the same input always gives the same prompt. An unknown directive stays as it is.
//! Does not know: time zones, locales other than C. Source: POSIX `strftime`; days by the civil calendar of
//! H. Hinnant, "chrono-compatible low-level date algorithms".

use std::fmt::Write;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A moment, taken apart.
#[derive(Clone, Copy, Debug)]
struct Moment {
    unix_s: i64,
    year: i64,
    /// From 1.
    month: i64,
    /// From 1.
    day: i64,
    /// From 0 = Sunday.
    weekday: i64,
    /// From 1.
    day_of_year: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Moment {
    fn new(unix_s: i64) -> Moment {
        let (days, in_day) = (unix_s.div_euclid(86_400), unix_s.rem_euclid(86_400));
        // Years that begin in March put the leap day last; an era is 400 years.
        let shifted = days + 719_468;
        let (era, in_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era = (in_era - in_era / 1_460 + in_era / 36_524 - in_era / 146_096) / 365;
        let from_march = in_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * from_march + 2) / 153;
        let day = from_march - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = i64::from(year % 4 == 0 && (year % 100 != 0 || year % 400 == 0));
        let day_of_year = if month > 2 { from_march + 59 + leap + 1 } else { from_march - 306 + 1 };
        Moment {
            unix_s,
            year,
            month,
            day,
            weekday: (days + 4).rem_euclid(7),
            day_of_year,
            hour: in_day / 3_600,
            minute: in_day / 60 % 60,
            second: in_day % 60,
        }
    }

    /// Year and week by ISO 8601: weeks begin on Monday, week 1 holds the year's first Thursday.
    fn iso_week(&self) -> (i64, i64) {
        let from_monday = (self.weekday + 6) % 7;
        let thursday = Moment::new(self.unix_s + (3 - from_monday) * 86_400);
        (thursday.year, (thursday.day_of_year - 1) / 7 + 1)
    }
}

/// Writes the time `unix_s` (seconds since 1970, UTC) as `format` says.
pub(super) fn strftime(format: &str, unix_s: i64) -> String {
    // Outside of the years 1 to 9999 Python has no date; the ends stand in.
    let moment = Moment::new(unix_s.clamp(-62_135_596_800, 253_402_300_799));
    let mut out = String::new();
    write_format(&mut out, format, &moment);
    out
}

fn write_format(out: &mut String, format: &str, m: &Moment) {
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let directive = &rest[at + 1..];
        // GNU's flags: no padding, blanks, zeros.
        let flag = directive.chars().next().filter(|c| matches!(c, '-' | '_' | '0'));
        let body = &directive[flag.map_or(0, char::len_utf8)..];
        let Some(letter) = body.chars().next() else {
            out.push_str(&rest[at..]);
            return;
        };
        if !write_directive(out, letter, flag, m) {
            let end = at + 1 + flag.map_or(0, char::len_utf8) + letter.len_utf8();
            out.push_str(&rest[at..end]);
        }
        rest = &body[letter.len_utf8()..];
    }
    out.push_str(rest);
}

/// False for an unknown directive.
fn write_directive(out: &mut String, letter: char, flag: Option<char>, m: &Moment) -> bool {
    let twelve = (m.hour + 11) % 12 + 1;
    let from_monday = (m.weekday + 6) % 7;
    let (value, width, pad) = match letter {
        'Y' => (m.year, 1, '0'),
        'G' => (m.iso_week().0, 1, '0'),
        'C' => (m.year / 100, 2, '0'),
        'y' => (m.year % 100, 2, '0'),
        'g' => (m.iso_week().0 % 100, 2, '0'),
        'm' => (m.month, 2, '0'),
        'd' => (m.day, 2, '0'),
        'e' => (m.day, 2, ' '),
        'H' => (m.hour, 2, '0'),
        'k' => (m.hour, 2, ' '),
        'I' => (twelve, 2, '0'),
        'l' => (twelve, 2, ' '),
        'M' => (m.minute, 2, '0'),
        'S' => (m.second, 2, '0'),
        'f' => (0, 6, '0'),
        'j' => (m.day_of_year, 3, '0'),
        'u' => (from_monday + 1, 1, '0'),
        'w' => (m.weekday, 1, '0'),
        'U' => ((m.day_of_year - 1 + 7 - m.weekday) / 7, 2, '0'),
        'W' => ((m.day_of_year - 1 + 7 - from_monday) / 7, 2, '0'),
        'V' => (m.iso_week().1, 2, '0'),
        's' => (m.unix_s, 1, '0'),
        _ => return write_text_directive(out, letter, m),
    };
    // Writing to a string cannot fail.
    let _ = match (flag, pad) {
        (Some('-'), _) => write!(out, "{value}"),
        (Some('_'), _) | (None, ' ') => write!(out, "{value:>width$}"),
        _ => write!(out, "{value:0width$}"),
    };
    true
}

fn write_text_directive(out: &mut String, letter: char, m: &Moment) -> bool {
    let (month, day) = (MONTHS[(m.month - 1) as usize], DAYS[m.weekday as usize]);
    match letter {
        'B' => out.push_str(month),
        'b' | 'h' => out.push_str(&month[..3]),
        'A' => out.push_str(day),
        'a' => out.push_str(&day[..3]),
        'p' => out.push_str(if m.hour < 12 { "AM" } else { "PM" }),
        'P' => out.push_str(if m.hour < 12 { "am" } else { "pm" }),
        'Z' => out.push_str("UTC"),
        'z' => out.push_str("+0000"),
        'c' => write_format(out, "%a %b %e %H:%M:%S %Y", m),
        'x' | 'D' => write_format(out, "%m/%d/%y", m),
        'X' | 'T' => write_format(out, "%H:%M:%S", m),
        'F' => write_format(out, "%Y-%m-%d", m),
        'R' => write_format(out, "%H:%M", m),
        'r' => write_format(out, "%I:%M:%S %p", m),
        'n' => out.push('\n'),
        't' => out.push('\t'),
        '%' => out.push('%'),
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::strftime;

    /// Expected texts are those of Python's `datetime.strftime` in UTC.
    #[test]
    fn dates_are_written_as_python_writes_them() {
        let all =
            "%Y-%m-%d %H:%M:%S|%d %b %Y|%A, %B %d|%a|%j|%y|%I %p|%U %W %V %G %u %w|%c|%x %X|%e|%-d %-m|%%";
        let cases = [
            (
                0,
                "1970-01-01 00:00:00|01 Jan 1970|Thursday, January 01|Thu|001|70|12 AM|00 00 01 1970 4 4|Thu Jan  1 00:00:00 1970|01/01/70 00:00:00| 1|1 1|%",
            ),
            (
                951_782_399,
                "2000-02-28 23:59:59|28 Feb 2000|Monday, February 28|Mon|059|00|11 PM|09 09 09 2000 1 1|Mon Feb 28 23:59:59 2000|02/28/00 23:59:59|28|28 2|%",
            ),
            (
                951_782_400,
                "2000-02-29 00:00:00|29 Feb 2000|Tuesday, February 29|Tue|060|00|12 AM|09 09 09 2000 2 2|Tue Feb 29 00:00:00 2000|02/29/00 00:00:00|29|29 2|%",
            ),
            (
                1_735_646_400,
                "2024-12-31 12:00:00|31 Dec 2024|Tuesday, December 31|Tue|366|24|12 PM|52 53 01 2025 2 2|Tue Dec 31 12:00:00 2024|12/31/24 12:00:00|31|31 12|%",
            ),
            (
                1_609_459_200,
                "2021-01-01 00:00:00|01 Jan 2021|Friday, January 01|Fri|001|21|12 AM|00 00 53 2020 5 5|Fri Jan  1 00:00:00 2021|01/01/21 00:00:00| 1|1 1|%",
            ),
            (
                -1,
                "1969-12-31 23:59:59|31 Dec 1969|Wednesday, December 31|Wed|365|69|11 PM|52 52 01 1970 3 3|Wed Dec 31 23:59:59 1969|12/31/69 23:59:59|31|31 12|%",
            ),
        ];
        for (unix_s, expected) in cases {
            assert_eq!(strftime(all, unix_s), expected, "{unix_s}");
        }
    }

    #[test]
    fn what_is_no_directive_stays_as_it_is() {
        assert_eq!(strftime("é %Q %-Q 100% %", 0), "é %Q %-Q 100% %");
        assert_eq!(strftime("%F %T%n%D%t%R %Z%z", 0), "1970-01-01 00:00:00\n01/01/70\t00:00 UTC+0000");
        assert_eq!(strftime("%Y", i64::MAX), "9999");
        assert_eq!(strftime("%Y", i64::MIN), "1");
    }
}
