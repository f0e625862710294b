package labtest

import "testing"

func TestLeft(t *testing.T) {
	before := []string{"a: namespace default", "a: peer b is Connected", "b: namespace default"}
	if err := left(before, before); err != nil {
		t.Error(err)
	}
	after := []string{"a: namespace default", "a: peer b is Lost", "b: namespace default"}
	if err := left(before, after); err == nil || err.Error() != "\n\t+ a: peer b is Lost\n\t- a: peer b is Connected" {
		t.Error(err)
	}
}
