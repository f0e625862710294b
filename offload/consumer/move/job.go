package move

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"rivulet/fabric/changes"
)

// Job is one move under way.
type Job struct {
	note   note
	volume string // the old one's name
	done   chan struct{}

	mu  sync.Mutex
	now Progress
	err error
}

// Progress is the state of a move.
type Progress struct {
	Namespace string `json:"namespace"`
	Claim     string `json:"claim"`
	To        string `json:"to"`
	// Step is the present step.
	Step string `json:"step"`
	// Bytes is the number of bytes transferred in this attempt, of about Total.
	Bytes int64 `json:"bytes,omitempty"`
	Total int64 `json:"total,omitempty"`
	// Trouble is why the last attempt failed, while it is retried.
	Trouble string `json:"trouble,omitempty"`
	// Kept is the name of the old volume if it is not removed.
	Kept string `json:"kept,omitempty"`
}

// The steps.
const (
	Holding   = "holding"   // no pod may start; running ones have to end
	Copying   = "copying"   //
	Comparing = "comparing" // reading both sides again
	Switching = "switching"
	Undoing   = "undoing"
	Done      = "done"
)

// Progress returns the state of the job.
func (j *Job) Progress() Progress {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.now
	p.Namespace, p.Claim, p.To = j.note.Namespace, j.note.Claim, j.note.To
	return p
}

// Ended is closed when the job is over; Err then has the result.
func (j *Job) Ended() <-chan struct{} { return j.done }

// Err is why the data were not moved, nil if they were.
func (j *Job) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}

func (j *Job) set(f func(*Progress)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f(&j.now)
}

func (j *Job) at(step string) { j.set(func(p *Progress) { p.Step = step }) }

func (j *Job) end(err error) {
	j.mu.Lock()
	j.err = err
	j.mu.Unlock()
	close(j.done)
}

// counted adds the bytes that are read to the job's progress.
type counted struct {
	io.Reader
	job  *Job
	late *time.Timer // until the next part is due
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err != nil {
		c.late.Stop() // comparing the copy may take any time
	} else {
		c.late.Reset(stall)
	}
	c.job.set(func(p *Progress) { p.Bytes += int64(n) })
	return n, err
}

// retry retries after conflicts, and while an API server restarts.
func retry(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil || errors.As(err, new(final)) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
			return err
		}
		if !changes.Wait(ctx, glance) {
			return err
		}
	}
}
