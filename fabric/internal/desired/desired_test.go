package desired

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
)

type state struct{ N int }

func TestAnswers(t *testing.T) {
	var in state
	put := Config("it", func(s state) error {
		if s.N < 0 {
			return errors.New("N is too small: write 0")
		}
		in = s
		return nil
	})
	for body, want := range map[string]string{
		`{"N":3}`:  "204 ",
		`{"N":-1}`: "422 N is too small: write 0",
		`{"N":`:    "400 it: the configuration is unreadable",
		`"` + strings.Repeat("x", maxConfig) + `"`: "400 it: the configuration is unreadable: http: request body too large",
	} {
		w := httptest.NewRecorder()
		put(w, httptest.NewRequest("PUT", "/", strings.NewReader(body)))
		if got := w.Result().Status[:4] + w.Body.String(); !strings.HasPrefix(got, want) {
			t.Errorf("%.20s: %q, want %q", body, got, want)
		}
	}
	if in.N != 3 {
		t.Errorf("in force is %+v", in)
	}
	for _, c := range []struct {
		err  error
		want string
	}{{nil, "200 {\"N\":3}"}, {errors.New("gone"), "500 gone"}} {
		w := httptest.NewRecorder()
		Status(func() (state, error) { return in, c.err })(w, httptest.NewRequest("GET", "/", nil))
		if got := w.Result().Status[:4] + w.Body.String(); !strings.HasPrefix(got, c.want) {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
