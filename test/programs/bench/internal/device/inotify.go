package device

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// inotifyPerDevice is what a device's kubelet and containerd open; without them
// k3s ends itself and the device never becomes Ready.
const inotifyPerDevice = 20

// roomForInotify waits until the kernel would give n devices their inotify
// instances: the limit is one for the whole machine, other labs included.
func roomForInotify(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		err := tryInotify(n * inotifyPerDevice)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("bench: no room for %d inotify instances: %w: end other labs, or sysctl fs.inotify.max_user_instances=1024", n*inotifyPerDevice, err)
		case <-time.After(time.Second):
		}
	}
}

func tryInotify(n int) error {
	for range n {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
	}
	return nil
}
