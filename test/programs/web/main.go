// Command web is the small web application of the demo and the end-to-end
// tests. It is never shipped.
//
//	web                  serve: who answered, from where, asked by whom; /bytes?n=N: that many; /ws: a WebSocket that repeats; by UDP, too
//	web get [-n N] URL   ask N times, print who answered how often, as JSON
//	web count URL        how many bytes it answers
//	web show URL         print its answer
//	web api PATH         what the cluster's API server answers to this pod's service account
//	web hooks DIR        serve webhooks and an API, with the certificate in DIR
//	web udp ADDR TEXT    ask by UDP until there is an answer, print it
//	web echo             repeat each line of standard input until it ends
//	web beat ADDR        five times a second ask the /ws of ADDR, all on one connection; print how long each answer took that took a second
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/net/websocket"
)

// Answer is what the server says.
type Answer struct {
	Pod    string `json:"pod"`
	Client string `json:"client"` // the address the request came from, as this pod sees it
}

func main() {
	var err error
	switch arg := append(os.Args[1:], "serve")[0]; arg {
	case "serve":
		err = serve()
	case "get":
		err = get(os.Args[2:])
	case "count":
		err = count(os.Args[2:])
	case "show":
		err = show(os.Args[2:])
	case "api":
		err = api(os.Args[2:])
	case "hooks":
		err = hooks(append(os.Args[2:], ".")[0])
	case "udp":
		err = udp(os.Args[2:])
	case "echo":
		for s := bufio.NewScanner(os.Stdin); s.Scan(); {
			fmt.Println("echo " + s.Text())
		}
	case "beat":
		err = beat(os.Args[2])
	default:
		err = fmt.Errorf("unknown command %q; use serve, get, count, show, api, hooks, udp, echo or beat", arg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "web: "+err.Error())
		os.Exit(1)
	}
}

func serve() error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		client, _, _ := net.SplitHostPort(r.RemoteAddr)
		if r.URL.Path != "/ready" { // the kubelet asks every second
			fmt.Printf("%s answered %s to %s\n", name, r.URL.Path, client)
		}
		json.NewEncoder(w).Encode(Answer{Pod: name, Client: client})
	})
	http.HandleFunc("/bytes", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.URL.Query().Get("n"), 10, 64)
		if err != nil || n < 0 {
			http.Error(w, "n is no number", http.StatusBadRequest)
			return
		}
		io.CopyN(w, zeros{}, n) //nolint:errcheck // the client has gone
	})
	http.Handle("/ws", websocket.Handler(func(c *websocket.Conn) { io.Copy(c, c) })) // the client has gone
	if err := serveUDP(name); err != nil {
		return err
	}
	fmt.Printf("%s serves on :8080\n", name)
	return http.ListenAndServe(":8080", nil)
}

// zeros is /dev/zero, which a container may lack.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func count(args []string) error {
	n, err := read(io.Discard, args)
	fmt.Println(n)
	return err
}

func show(args []string) error {
	_, err := read(os.Stdout, args)
	return err
}

// read copies the answer of one URL.
func read(to io.Writer, args []string) (int64, error) {
	if len(args) != 1 {
		return 0, errors.New("this takes one URL")
	}
	resp, err := (&http.Client{Timeout: 15 * time.Second}).Get(args[0])
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return io.Copy(to, resp.Body)
}

func get(args []string) error {
	fs := flag.NewFlagSet("get", flag.ExitOnError)
	n := fs.Int("n", 1, "how often")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() != 1 {
		return errors.New("get takes one URL")
	}
	// A connection each, so that a Service balances over all its endpoints.
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	count := map[string]int{}
	for range *n {
		resp, err := client.Get(fs.Arg(0))
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			return err
		}
		var a Answer
		if err := json.Unmarshal(body, &a); err != nil {
			return fmt.Errorf("%w in %q", err, body)
		}
		count[a.Pod]++
	}
	return json.NewEncoder(os.Stdout).Encode(count)
}

// beat asks on one connection until that breaks.
func beat(addr string) error {
	conn, err := websocket.Dial("ws://"+addr+"/ws", "", "http://"+addr+"/")
	if err != nil {
		return err
	}
	defer conn.Close()
	fmt.Println("connected")
	for n := 0; ; n++ {
		begun, text := time.Now(), strconv.Itoa(n)
		var answer string
		if err := websocket.Message.Send(conn, text); err != nil {
			return err
		}
		if err := websocket.Message.Receive(conn, &answer); err != nil {
			return err
		}
		if took := time.Since(begun); took > time.Second {
			fmt.Printf("answer %d took %d ms\n", n, took.Milliseconds())
		}
		if n%50 == 0 {
			fmt.Printf("%d answers\n", n)
		}
		time.Sleep(200 * time.Millisecond)
	}
}
