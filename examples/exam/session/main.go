// Command session is the program of a student's session in examples/exam: a WebSocket that keeps every answer in the
// session's folder and returns how it was kept, so that a client notices a session that was lost, moved or started anew.
//
//	GET /     the state of the session, as JSON
//	GET /ws   a WebSocket: each message is an answer, which is kept before the state is returned
//
// It reads SESSION (its name), POD_UID and WORK (the folder, /work by default) from the environment, and alone writes
// the files "answers" (one a line) and "starts" (one line for each start) there.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/websocket"
)

// State is what a client reads.
type State struct {
	Session string    `json:"session"`
	Pod     string    `json:"pod"` // UID
	Since   time.Time `json:"since"`
	Starts  int       `json:"starts"`  // of this program with this folder, this one included
	Answers int       `json:"answers"` // kept
}

type session struct {
	mu    sync.Mutex
	state State
	file  *os.File
}

func main() {
	work := os.Getenv("WORK")
	if work == "" {
		work = "/work"
	}
	s, err := open(work, State{Session: os.Getenv("SESSION"), Pod: os.Getenv("POD_UID"), Since: time.Now().UTC()})
	if err == nil {
		fmt.Printf("session %s serves on :8080, start %d, %d answers kept\n", s.state.Session, s.state.Starts, s.state.Answers)
		err = http.ListenAndServe(":8080", s.handler())
	}
	fmt.Fprintln(os.Stderr, "session: "+err.Error())
	os.Exit(1)
}

// open counts what earlier starts have left in the folder, and notes this one.
func open(work string, state State) (*session, error) {
	starts, err := appendLine(filepath.Join(work, "starts"), state.Since.Format(time.RFC3339)+" "+state.Pod)
	if err != nil {
		return nil, err
	}
	name := filepath.Join(work, "answers")
	state.Starts = starts
	if state.Answers, err = lines(name); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	return &session{state: state, file: file}, err
}

func lines(name string) (int, error) {
	raw, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return bytes.Count(raw, []byte("\n")), err
}

// appendLine returns how many lines there are then.
func appendLine(name, line string) (int, error) {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	_, err = fmt.Fprintln(f, line)
	if err := errors.Join(err, f.Close()); err != nil {
		return 0, err
	}
	return lines(name)
}

func (s *session) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		_ = json.NewEncoder(w).Encode(s.state) // the client has gone
	})
	mux.Handle("GET /ws", websocket.Handler(s.converse))
	return mux
}

// converse keeps answers until the client has gone, or one cannot be kept.
func (s *session) converse(c *websocket.Conn) {
	for {
		var answer string
		if err := websocket.Message.Receive(c, &answer); err != nil {
			return
		}
		state, err := s.keep(answer)
		if err != nil {
			fmt.Fprintln(os.Stderr, "session: an answer was not kept: "+err.Error())
			return
		}
		if err := websocket.JSON.Send(c, state); err != nil {
			return
		}
	}
}

// keep returns when the answer is on the disk.
func (s *session) keep(answer string) (State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := fmt.Fprintln(s.file, strings.ReplaceAll(answer, "\n", " ")); err != nil {
		return State{}, err
	}
	if err := s.file.Sync(); err != nil {
		return State{}, err
	}
	s.state.Answers++
	return s.state, nil
}
