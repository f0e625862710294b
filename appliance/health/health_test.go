package health

import (
	"errors"
	"regexp"
	"testing"
	"time"
)

func TestProblemsKeepTheirBeginAndTheWorstComesFirst(t *testing.T) {
	low := &Kind{"a-low", Info, "low"}
	bad := &Kind{"z-bad", Error, "bad"}
	at := time.Unix(1000, 0)
	tr := Tracker{now: func() time.Time { return at }}
	tr.Set(low, "x", "do y")
	tr.SetFor(bad, "peer-b", "x", "do y")
	tr.SetFor(bad, "peer-a", "x", "do y")
	at = at.Add(time.Hour)
	tr.Set(low, "other words", "do z")
	got := tr.Problems()
	if len(got) != 3 || got[0].Subject != "peer-a" || got[1].Subject != "peer-b" || got[2].Code != "a-low" {
		t.Fatalf("%v", got)
	}
	if got[2].Text != "other words" || !got[2].Since.Equal(time.Unix(1000, 0)) {
		t.Errorf("reported again: %+v, want new words and the old begin", got[2])
	}
	tr.ClearFor(bad, "peer-a")
	tr.Clear(low)
	if got := tr.Problems(); len(got) != 1 || got[0].Subject != "peer-b" {
		t.Errorf("cleared, yet %v", got)
	}
}

func TestReportTakesTheCureOffAnError(t *testing.T) {
	k := &Kind{"x", Warning, "it is so"}
	var tr Tracker
	tr.Report(k, errors.New("store: disk full; delete something"))
	if got := tr.Problems()[0]; got.Text != "store: disk full" || got.Cure != "delete something" ||
		got.String() != "it is so [x]: store: disk full; delete something" {
		t.Errorf("%+v: %s", got, got)
	}
	tr.Report(k, nil)
	if len(tr.Problems()) != 0 {
		t.Error("no error, yet a problem")
	}
}

func TestCodesAreForPrograms(t *testing.T) {
	for _, k := range Kinds() {
		if !regexp.MustCompile(`^[a-z]+(-[a-z0-9]+)*$`).MatchString(k.Code) || k.Severity.rank() < 0 || k.Title == "" {
			t.Errorf("%+v: want a code of lower case words and dashes, a known severity and a title", k)
		}
	}
}

func TestReplaceKeepsWhatStillHolds(t *testing.T) {
	k, other := &Kind{"x", Error, "it is so"}, &Kind{"y", Error, "it is so"}
	at := time.Unix(1000, 0)
	tr := Tracker{now: func() time.Time { return at }}
	tr.Set(other, "x", "y")
	tr.Replace(k, map[string][2]string{"a": {"text", "cure"}, "b": {"text", "cure"}})
	at = at.Add(time.Hour)
	tr.Replace(k, map[string][2]string{"b": {"more", "cure"}, "c": {"text", "cure"}})
	got := tr.Problems()
	if len(got) != 3 || got[0].Subject != "b" || got[0].Text != "more" || !got[0].Since.Equal(time.Unix(1000, 0)) || got[1].Subject != "c" || got[2].Code != "y" {
		t.Errorf("%v", got)
	}
	tr.Replace(k, nil)
	if got := tr.Problems(); len(got) != 1 || got[0].Code != "y" {
		t.Errorf("nothing holds, yet %v", got)
	}
}

func TestSetAtChangesOneReportOnly(t *testing.T) {
	k := &Kind{"x", Error, "it is so"}
	var tr Tracker
	tr.SetAt(k, Warning, "", "x", "y")
	if got := tr.Problems()[0].Severity; got != Warning || k.Severity != Error {
		t.Errorf("%s, its kind %s", got, k.Severity)
	}
	tr.Set(k, "x", "y")
	if got := tr.Problems()[0].Severity; got != Error {
		t.Errorf("worse now: %s", got)
	}
}
