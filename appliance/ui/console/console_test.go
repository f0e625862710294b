package console

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"rivulet/appliance/ui/summary"
)

func ready() *summary.View {
	return &summary.View{
		Name: "lab-1", Ready: true, Summary: "ready, with one problem", URL: "http://lab-1.local", Addresses: []string{"192.0.2.7"},
		Steps: []summary.Step{
			{Name: "clock", State: summary.Done, Text: "kept by a time service"}, {Name: "network", State: summary.Done, Text: "192.0.2.7"},
			{Name: "datastore", State: summary.Done, Text: "in order"}, {Name: "API", State: summary.Done, Text: "answers"},
			{Name: "node", State: summary.Working, Text: "waits for the kubelet to report"}, {Name: "peers", State: summary.Waiting, Text: "comes later"},
		},
		Problems: []summary.Problem{{Title: "the power supply is too weak", Text: "under-voltage now", Cure: "use the official power supply of this board"}},
		Now:      time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC),
	}
}

func code(n int) *Invite {
	var rows []string
	for range n {
		rows = append(rows, strings.Repeat("█", 2*n-1))
	}
	return &Invite{Code: "RIV1-" + strings.Repeat("ABCD-", 16), Until: "12:10", QR: rows, Width: 2*n - 1}
}

// What stands on a screen of 80 columns and 25 rows.
func TestPicture(t *testing.T) {
	got := strings.Join(Draw(ready(), "", code(19), Least), "\n")
	for n, want := range strings.Split(`lab-1
ready, with one problem
http://lab-1.local  192.0.2.7

ok clock      kept by a time service
ok network    192.0.2.7
ok datastore  in order
ok API        answers
.. node       waits for the kubelet to
              report
   peers      comes later

! the power supply is too weak:
  under-voltage now
  do: use the official power supply of
      this board`, "\n") {
		line, _, _ := strings.Cut(strings.Split(got, "\n")[n], "█")
		if strings.TrimRight(line, " ") != want {
			t.Errorf("row %d is %q, want %q\n%s", n+1, line, want, got)
		}
	}
	if rows := strings.Split(got, "\n"); len(rows) != 25 || !strings.HasPrefix(rows[22], "to pair, until 12:10, once: scan, or type there: rivulet peer --invite") || !strings.HasPrefix(rows[23], "  RIV1-ABCD") {
		t.Errorf("%d rows:\n%s", len(rows), got)
	}
}

// A QR code that does not fit is left out; the code as text is there all the same.
func TestACodeThatIsTooLarge(t *testing.T) {
	for _, i := range []*Invite{code(25), {Code: "RIV1-X", QR: []string{strings.Repeat("█", 60)}, Width: 60}} {
		got := strings.Join(Draw(ready(), "", i, Least), "\n")
		if strings.Contains(got, "█") || !strings.Contains(strings.Join(strings.Fields(got), ""), i.Code) {
			t.Errorf("got\n%s", got)
		}
	}
}

func TestWithoutASupervisor(t *testing.T) {
	got := strings.Join(Draw(nil, "rivulet is not running yet; if that stays so: journalctl -u rivulet", nil, Least), "\n")
	if !strings.Contains(got, "journalctl -u rivulet") {
		t.Error(got)
	}
}

// Whatever there is to say, and however small the terminal: the picture fits, the
// state is in it, and problems that are not shown are told of.
func TestThePictureFits(t *testing.T) {
	line := rapid.StringMatching(`[a-zé;:. -]{0,120}`)
	rapid.Check(t, func(t *rapid.T) {
		v := ready()
		v.Summary = "ready " + line.Draw(t, "summary")
		v.Problems = nil
		for range rapid.IntRange(0, 12).Draw(t, "problems") {
			v.Problems = append(v.Problems, summary.Problem{Title: "pröblem", Text: line.Draw(t, "text"), Cure: line.Draw(t, "cure")})
		}
		var i *Invite
		if n := rapid.IntRange(0, 26).Draw(t, "code"); n > 0 {
			i = code(n)
		}
		size := Size{rapid.IntRange(40, 200).Draw(t, "columns"), rapid.IntRange(18, 60).Draw(t, "rows")}
		rows := Draw(v, "", i, size)
		if len(rows) > size.Rows {
			t.Fatalf("%d rows on %d", len(rows), size.Rows)
		}
		for _, r := range rows {
			if n := utf8.RuneCountInString(r); n > size.Columns {
				t.Fatalf("%d columns on %d: %q", n, size.Columns, r)
			}
		}
		all := strings.Join(rows, "\n")
		if !strings.HasPrefix(all, "lab-1") || !strings.Contains(all, "\nready") {
			t.Fatalf("no state:\n%s", all)
		}
		if strings.Count(all, "! pröblem") < len(v.Problems) && !strings.Contains(all, "more: rivulet status") && size.Rows >= 24 && size.Columns >= 80 {
			t.Fatalf("problems are left out in silence:\n%s", all)
		}
	})
}

func TestWrapKeepsEveryLetter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringMatching(`( {0,3}[a-zé]{1,50}){0,12}`).Draw(t, "text")
		width := rapid.IntRange(8, 60).Draw(t, "width")
		var got strings.Builder
		for _, row := range wrap(s, width, "  ") {
			if utf8.RuneCountInString(row) > width {
				t.Fatalf("%q is wider than %d", row, width)
			}
			got.WriteString(row)
		}
		if strings.ReplaceAll(got.String(), " ", "") != strings.ReplaceAll(s, " ", "") {
			t.Fatalf("%q became %q", s, got.String())
		}
	})
}

// A name or a text that others have chosen only shows on the device's own screen.
func TestNamesDoNotReachTheTerminal(t *testing.T) {
	v := ready()
	v.Name, v.Problems[0].Text = "lab\x1b[2J-1", "under\u202e-voltage\u009b31m now\r"
	got := strings.Join(Draw(v, "", nil, Least), "\n")
	if strings.ContainsAny(got, "\x1b\u202e\u009b\r") || !strings.Contains(got, "lab[2J-1") || !strings.Contains(got, "under-voltage31m now") {
		t.Errorf("%q", got)
	}
}
