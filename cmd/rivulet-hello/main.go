// Command rivulet-hello is the program of the example image rivulet.dev/hello:1, which is part of the bundle
// (docs/design/bundle.md): a web server that says which pod answers, and a client that counts who answered. It speaks as
// much HTTP as that takes, since Go's own would make it three times as large.
//
//	hello                  serve on port 8080 until SIGTERM: "hello from POD"
//	hello get [-n N] URL   ask N times, print each answer and how often it came
package main

import (
	"bufio"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"
)

// patience bounds one request, on both sides.
const patience = 10 * time.Second

// maxHead and maxAnswer bound what is read of a request and of an answer, bytes.
const maxHead, maxAnswer = 64 << 10, 1 << 20

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 0:
		err = serve()
	case args[0] == "get":
		err = get(os.Stdout, args[1:])
	default:
		err = fmt.Errorf("unknown command %q; use hello, or hello get [-n N] URL", args[0])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hello: "+err.Error())
		os.Exit(1)
	}
}

func serve() error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", ":8080")
	if err != nil {
		return err
	}
	fmt.Printf("%s serves on :8080\n", name)
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			if line, err := answer(c, name); err == nil {
				fmt.Printf("%.200q to %s\n", line, c.RemoteAddr())
			}
		}()
	}
}

// answer answers one request, closes the connection, and returns the first line of the request.
func answer(c net.Conn, name string) (line string, err error) {
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	r := bufio.NewReader(io.LimitReader(c, maxHead))
	for end := ""; end != "\r\n" && end != "\n"; {
		if end, err = r.ReadString('\n'); err != nil {
			return "", err
		}
		line = cmp.Or(line, strings.TrimSpace(end))
	}
	text := "hello from " + name + "\n"
	_, err = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", len(text))
	if err == nil && !strings.HasPrefix(line, "HEAD ") {
		_, err = io.WriteString(c, text)
	}
	return line, err
}

// get prints who answered how often, most first.
func get(to io.Writer, args []string) error {
	flags := flag.NewFlagSet("hello get", flag.ContinueOnError)
	n := flags.Int("n", 1, "how often to ask")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 || *n < 1 {
		return errors.New("this takes one URL, for example: hello get -n 6 http://web")
	}
	count := map[string]int{}
	for range *n {
		text, err := fetch(flags.Arg(0))
		if err != nil {
			return err
		}
		count[text]++
	}
	for _, text := range slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b))
	}) {
		fmt.Fprintf(to, "%d x %s\n", count[text], text)
	}
	return nil
}

// fetch returns the body of the answer of an http URL, without white space around it. Each call makes a connection of its own.
func fetch(url string) (string, error) {
	rest, ok := strings.CutPrefix(url, "http://")
	if !ok {
		return "", fmt.Errorf("%s is no URL of http; for example http://web", url)
	}
	host, path, _ := strings.Cut(rest, "/")
	at := host
	if _, _, err := net.SplitHostPort(host); err != nil {
		at = net.JoinHostPort(strings.Trim(host, "[]"), "80")
	}
	c, err := net.DialTimeout("tcp", at, patience)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(c, "GET /%s HTTP/1.0\r\nHost: %s\r\n\r\n", path, host); err != nil {
		return "", err
	}
	raw, err := io.ReadAll(io.LimitReader(c, maxAnswer))
	if err != nil {
		return "", err
	}
	head, body, whole := strings.Cut(string(raw), "\r\n\r\n")
	version, status, _ := strings.Cut(head, " ")
	if !whole || !strings.HasPrefix(version, "HTTP/1.") {
		return "", fmt.Errorf("%s does not answer by HTTP", url)
	}
	if status, _, _ = strings.Cut(status, "\r\n"); !strings.HasPrefix(status, "200") {
		return "", fmt.Errorf("%s answers %s", url, status)
	}
	return strings.TrimSpace(body), nil
}
