package faulty

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Each way fails the call that was chosen and no other; the mean ones have reached the server.
func TestEachWay(t *testing.T) {
	for way := range Ways {
		served := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			served++
			_, _ = io.WriteString(w, strings.Repeat("x", 200))
		}))
		defer server.Close()
		calls := &Calls{}
		client := http.Client{Transport: calls.Wrap(http.DefaultTransport)}
		calls.Fail(2, way)
		for i := 1; i <= 3; i++ {
			before := served
			answer, err := client.Get(server.URL)
			length, code := 0, 0
			if err == nil {
				var body []byte
				body, err = io.ReadAll(answer.Body)
				length, code = len(body), answer.StatusCode
			}
			whole := err == nil && length == 200 && code == http.StatusOK
			reached := i != 2 || way == Lost || way == Torn
			if whole != (i != 2) || (served > before) != reached {
				t.Errorf("%s, call %d: %d bytes, code %d, %v; reached the server: %v", way, i, length, code, err, served > before)
			}
		}
		if want := "GET /: " + way.String(); calls.Failed() != want || calls.Count() != 3 {
			t.Errorf("failed %q, want %q; %d calls", calls.Failed(), want, calls.Count())
		}
	}
}
