// Package image starts device images in QEMU and looks at them through a root shell
// on their serial line: `make test-image`. It reads the image that RIVULET_IMAGE
// names and writes copies of it into folders of its own. Emulated by software, a
// machine needs one to ten minutes to come up; the limits are generous.
//
// RIVULET_SERIAL names a folder for what the machines said, RIVULET_DEMO the demo's image.
// TestUpdate has images and bundles of its own; `make test-image RUN=TestUpdate` is it alone.
//
// The shell is systemd.debug_shell on the kernel's command line, put there on the
// copy's boot partition: nothing in the image is there for tests.
package image
