package offload

// Queues returns how many receive queues are in use.
func (i *Interface) Queues() (rx int, err error) {
	name, err := i.tool.Name(i.index) // it may have been renamed
	if err != nil {
		return 0, err
	}
	rx, _, err = i.tool.Queues(name)
	return rx, err
}
