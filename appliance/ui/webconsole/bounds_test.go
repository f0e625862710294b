package webconsole

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnEndedSessionLendsNobodyItsPlace(t *testing.T) {
	a, now := accessAt(&memory{})
	in := func(r Role) string {
		token, _, err := a.signIn(codeFor(t, a, r), "192.0.2.7", "")
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	in(View)
	*now = now.Add(sessionIdle - time.Minute)
	viewer := in(View)
	in(Admin)
	*now = now.Add(seenEvery + time.Minute) // the first has ended, and the use of the second is stored
	if s, ok := a.find(viewer); !ok || s.Role != View || s.Hash != hashOf(viewer) {
		t.Errorf("the viewer's token is of %+v, %v", s, ok)
	}
}

func TestWrongCodesOfOthersKeepNobodyOut(t *testing.T) {
	a, _ := accessAt(&memory{})
	for i := range 2 * allAttempts {
		if _, _, err := a.signIn("0000-0000-0000-0000", fmt.Sprintf("fe80::%x", i+1), ""); err == nil {
			t.Fatal("a wrong code works")
		}
	}
	if n := a.allFailed(); n > allAttempts {
		t.Errorf("%d failed attempts are remembered", n)
	}
	if _, _, err := a.signIn(codeFor(t, a, View), "192.0.2.7", ""); err != nil {
		t.Error(err)
	}
}

func TestADownloadThatIsNotFetchedIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Console{tickets: map[string]ticket{}}
		if _, err := c.newTicket(Session{}, func(context.Context, http.ResponseWriter) error { return nil }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(ticketLife + time.Second)
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.tickets) != 0 {
			t.Error("it is still in memory")
		}
	})
}

// The output of a shell may come after its request has ended.
func TestOutputAfterTheEndOfARequest(t *testing.T) {
	left := make(chan *events, 1)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		out := newEvents(w)
		defer out.close()
		out.Write([]byte("hello"))
		left <- out
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // a test
	defer client.CloseIdleConnections()
	answer, err := client.Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || answer.ProtoMajor != 2 || !strings.Contains(string(text), "hello") {
		t.Fatalf("%s %q %v", answer.Proto, text, err)
	}
	if _, err := (<-left).Write([]byte("more")); err == nil {
		t.Error("a write after the end works")
	}
}

func TestALineThatNoProgramReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, input := io.Pipe()
		c := &Console{}
		c.streams.shells = map[string]*shell{"1": {"s", input, func() {}, make(chan struct{}, 1)}}
		send := func(line string) error {
			_, err := shellInput(t.Context(), c, &call{url.Values{"id": {"1"}, "line": {line}}, Session{ID: "s"}})
			return err
		}
		if err := send("one"); err == nil || !strings.Contains(err.Error(), "do not send it again") {
			t.Error(err)
		}
		if err := send("two"); err == nil || !strings.Contains(err.Error(), "not sent") {
			t.Error(err)
		}
		got := make([]byte, 16)
		if n, err := in.Read(got); err != nil || string(got[:n]) != "one\n" {
			t.Errorf("%q %v", got[:n], err)
		}
		synctest.Wait()
		go in.Read(got) //nolint:errcheck // it ends the test if it fails
		if err := send("three"); err != nil {
			t.Error(err)
		}
	})
}

// However many pages are asked for, few are made at a time: a query makes one of its own.
func TestFewPagesAreMadeAtATime(t *testing.T) {
	d := newDevice(t)
	d.making <- struct{}{}
	for range maxMaking - 1 {
		d.making <- struct{}{}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	s := Session{ID: "x", Role: View}
	shown := make(chan error, 1)
	go func() {
		_, err := d.show(ctx, s, &url.URL{Path: "/map", RawQuery: "one=more"})
		shown <- err
	}()
	<-ctx.Done()
	select {
	case err := <-shown:
		t.Fatal("a page is made beyond the bound:", err)
	default:
	}
	<-d.making
	if err := <-shown; err != nil {
		t.Error("after a place is free:", err)
	}
}
