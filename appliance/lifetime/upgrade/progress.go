package upgrade

import (
	"io"

	"rivulet/appliance/lifetime/slots"
	"rivulet/image/flash"
)

// counted reports the progress of reading a file.
type counted struct {
	io.Reader
	done, of int64
	show     flash.Progress
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.done += int64(n)
	c.show(flash.Checking, c.done, c.of)
	return n, err
}

// progress returns the request's progress function, or one without effect.
func (r Request) progress() flash.Progress {
	if r.Progress == nil {
		return func(flash.Stage, int64, int64) {}
	}
	return r.Progress
}

// countedRoot reports the progress of writing and reading back a slot.
type countedRoot struct {
	slots.Root
	written, read, of int64
	show              flash.Progress
}

func (c *countedRoot) WriteAt(p []byte, at int64) (int, error) {
	n, err := c.Root.WriteAt(p, at)
	c.written += int64(n)
	c.show(flash.Writing, c.written, c.of)
	return n, err
}

func (c *countedRoot) ReadAt(p []byte, at int64) (int, error) {
	n, err := c.Root.ReadAt(p, at)
	c.read += int64(n)
	c.show(flash.Reading, c.read, c.of)
	return n, err
}
