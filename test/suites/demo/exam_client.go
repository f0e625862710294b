package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/test/harness/await"
)

// answerEvery is the pace of a student.
const answerEvery = 500 * time.Millisecond

// student of the exam: one WebSocket, from home's network to the Service of a session, for as long as the session lasts.
type examStudent struct {
	attendance
	conn *websocket.Conn

	mu      sync.Mutex
	answers int
	longest time.Duration // until an answer was kept, since fromNow
	ended   time.Time     // when the connection broke, or an answer was not as it must be
	err     error
}

// connect opens the WebSocket, which may take a moment until the Service leads to the session.
func (e *exam) connect(ctx context.Context, s attendance) (*examStudent, error) {
	service, err := e.home.api.CoreV1().Services(s.namespace).Get(ctx, "session-"+s.number, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	address := net.JoinHostPort(service.Spec.ClusterIP, "80")
	cfg, err := websocket.NewConfig("ws://"+address+"/ws", "http://"+address+"/")
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	x := &examStudent{attendance: s}
	err = await.Until(ctx, func() error {
		limit, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		conn, err := e.home.device.Dial(limit, "tcp", address)
		if err != nil {
			return fmt.Errorf("demo: session %s of %s: %w", s.number, s.namespace, err)
		}
		if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return errors.Join(err, conn.Close())
		}
		if x.conn, err = websocket.NewClient(cfg, conn); err != nil {
			return errors.Join(err, conn.Close())
		}
		return conn.SetDeadline(time.Time{})
	})
	return x, err
}

// write sends answers until the connection ends.
func (x *examStudent) write() {
	pace := time.NewTicker(answerEvery)
	defer pace.Stop()
	for n := 1; ; n++ {
		begun := time.Now()
		err := x.answer(n)
		x.mu.Lock()
		if err != nil {
			x.ended, x.err = time.Now(), fmt.Errorf("session %s of %s on %s, answer %d: %w", x.number, x.namespace, x.node, n, err)
			x.mu.Unlock()
			return
		}
		x.answers, x.longest = n, max(x.longest, time.Since(begun))
		x.mu.Unlock()
		<-pace.C
	}
}

// answer sends one and reads how the session has kept it: in the same pod, started once, after all before it.
func (x *examStudent) answer(n int) error {
	if err := websocket.Message.Send(x.conn, fmt.Sprintf("answer %d", n)); err != nil {
		return err
	}
	var got struct {
		Session, Pod    string
		Starts, Answers int
	}
	if err := websocket.JSON.Receive(x.conn, &got); err != nil {
		return err
	}
	if got.Session != x.number || got.Pod != string(x.uid) || got.Starts != 1 || got.Answers != n {
		return fmt.Errorf("the session is not the one that it was: %+v, want pod %s", got, x.uid)
	}
	return nil
}

func (x *examStudent) state() (answers int, ended time.Time, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.answers, x.ended, x.err
}

// classroom is all students of the exam.
type classroom []*examStudent

// sit connects a student to each session.
func (e *exam) sit(ctx context.Context) (classroom, error) {
	var all classroom
	for _, s := range e.roll.all() {
		x, err := e.connect(ctx, s)
		if err != nil {
			return all, err
		}
		all = append(all, x)
		go x.write()
	}
	return all, nil
}

// goOn waits until each has had three answers more, on the same connection.
func (all classroom) goOn(ctx context.Context) error {
	from := map[*examStudent]int{}
	for _, x := range all {
		from[x], _, _ = x.state()
	}
	return await.Until(ctx, func() error {
		for _, x := range all {
			answers, _, err := x.state()
			if err != nil {
				return fmt.Errorf("demo: %w", err)
			}
			if answers < from[x]+3 {
				return fmt.Errorf("demo: session %s of %s on %s has had %d answers since", x.number, x.namespace, x.node, answers-from[x])
			}
		}
		return nil
	})
}

// uncut is nil as long as no connection has ended.
func (all classroom) uncut() error {
	var errs []error
	for _, x := range all {
		_, _, err := x.state()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// fromNow forgets how long answers took.
func (all classroom) fromNow() {
	for _, x := range all {
		x.mu.Lock()
		x.longest = 0
		x.mu.Unlock()
	}
}

// slowest is how long the slowest answer since fromNow took on each node.
func (all classroom) slowest() string {
	took := map[string]time.Duration{}
	for _, x := range all {
		x.mu.Lock()
		took[x.node] = max(took[x.node], x.longest)
		x.mu.Unlock()
	}
	var parts []string
	for _, node := range slices.Sorted(maps.Keys(took)) {
		parts = append(parts, fmt.Sprintf("%.1f s on %s", took[node].Seconds(), node))
	}
	return strings.Join(parts, ", ")
}

func (all classroom) close() {
	for _, x := range all {
		x.conn.Close()
	}
}
