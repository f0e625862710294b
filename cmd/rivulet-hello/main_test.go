package main

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Go's HTTP understands the server, and the client understands Go's server and our own.
func TestHello(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	lines := make(chan string, 16)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			line, _ := answer(c, "web-1")
			lines <- line
		}
	}()
	url := "http://" + l.Addr().String()
	resp, err := http.Get(url + "/any/path")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "hello from web-1\n" || resp.StatusCode != http.StatusOK {
		t.Errorf("%q, %v, %s", body, err, resp.Status)
	}
	if line := <-lines; line != "GET /any/path HTTP/1.1" {
		t.Errorf("the log says %q", line)
	}
	var out bytes.Buffer
	if err := get(&out, []string{"-n", "3", url}); err != nil || out.String() != "3 x hello from web-1\n" {
		t.Errorf("get: %q, %v", &out, err)
	}

	missing := httptest.NewServer(http.NotFoundHandler())
	defer missing.Close()
	for args, want := range map[string]string{
		missing.URL:           "answers 404 Not Found",
		"https://web":         "no URL of http",
		"-n 0 http://web":     "takes one URL",
		"":                    "takes one URL",
		"http://127.0.0.1:1/": "refused",
	} {
		if err := get(io.Discard, strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("get %s: %v, want %q", args, err, want)
		}
	}
}
