package control

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// Two hundred peers that each watch two namespaces leave a peer with many namespaces what is its own.
func TestManyPeersLeaveRoomForOneWithMuch(t *testing.T) {
	p := New(Config{})
	release := make(chan struct{})
	var begun, ended sync.WaitGroup
	hold := func(party string, n int) {
		for range n {
			begun.Add(1)
			ended.Go(func() {
				var once sync.Once
				p.proved.Serve(party, httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil), func(http.ResponseWriter, *http.Request) {
					once.Do(begun.Done)
					<-release
				})
				once.Do(func() {
					t.Errorf("a watch of %s is refused", party)
					begun.Done()
				})
			})
		}
	}
	for i := range 200 {
		hold(fmt.Sprint("peer ", i), 20)
	}
	hold("the one with much", 1300) // a hundred namespaces
	begun.Wait()
	w := httptest.NewRecorder()
	p.proved.Serve("the one with much", w, httptest.NewRequest(http.MethodGet, "/", nil), func(http.ResponseWriter, *http.Request) {})
	if w.Code != http.StatusOK {
		t.Errorf("a request of it gets %d", w.Code)
	}
	close(release)
	ended.Wait()
}
